"""Errors of stored files. Every message begins with the file's name."""

from __future__ import annotations


class DamagedFileError(ValueError):
    """A file was not written by `gdpa.files`: foreign, cut off, changed, or of classes that are not known here."""


class NewerFormatError(DamagedFileError):
    """A file has a format version above the one that this gdpa reads."""


class UnavailableError(RuntimeError):
    """A file is whole, and needs an array library, a device or a precision that is not available here."""
