"""A Markdown extension that fills pages from the registry of methods, so that a new method needs no line in them.

A line ``[[methods]]`` becomes one ``:::`` entry per method, a line ``[[table 1]]`` the table of the methods' cards.
"""

from __future__ import annotations

from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from gdpa import get_method, method_names
from gdpa.methods.method import MethodCard


def entries() -> str:
    """Return the reference of every method, in the order of the registry."""
    classes = [get_method(name) for name in method_names()]
    return "\n\n".join(f"::: {cls.__module__}.{cls.__name__}" for cls in classes)


def table1() -> str:
    """Return the paper's Table 1 as a Markdown table, made from the classes, and below it the methods it leaves out."""
    head = ("method", "name here", "framework", "constraint", "type", "loops", "complexity (Table 1)",
            "its own paper claims")  # fmt: skip
    lines = [head, ("---",) * len(head)]
    rows = [(name, getattr(get_method(name), "card", MethodCard())) for name in method_names()]
    for name, row in sorted(rows, key=lambda pair: not pair[1].in_table1):
        complexity = row.complexity if row.in_table1 else "not in Table 1"
        claim = row.own_claim or ("the same" if row.in_table1 else "no rate")
        kind = (row.framework, row.constraint, row.constraint_type, row.loops)
        lines.append((row.name or get_method(name).__name__, f"`{name}`", *kind, complexity, claim))
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


PLACES = {"[[methods]]": entries, "[[table 1]]": table1}


class _Fill(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        filled: list[str] = []
        for line in lines:
            make = PLACES.get(line.strip())
            filled += [line] if make is None else make().splitlines()
        return filled


class RegistryExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(_Fill(md), "registry", 40)  # before HTML blocks are taken out, which have 20


def makeExtension(**settings: Any) -> RegistryExtension:  # noqa: N802
    return RegistryExtension(**settings)
