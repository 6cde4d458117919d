"""The methods by name, and one method per file."""

from gdpa.methods.registry import as_algorithm, class_names, default_method, get_method, method_names, register

__all__ = ["as_algorithm", "class_names", "default_method", "get_method", "method_names", "register"]
