"""Turns the docstrings, written for `help()`, into Markdown: doctests are fenced, `.. math::` becomes `$$`."""

from __future__ import annotations

import re
from typing import Any

import griffe

MATH = re.compile(r"^([ ]*)\.\. math::[ ]*(.*)\n((?:\1[ ]+.*\n|[ ]*\n)*)", re.MULTILINE)
INLINE = re.compile(r":math:`([^`]*)`")
LITERAL = re.compile(r"^(.*\S)::[ ]*$", re.MULTILINE)
DOCTEST = re.compile(r"^>>> .*\n(?:.*\S.*\n)*", re.MULTILINE)  # those inside "Examples:" are indented and known
EXAMPLE = re.compile(r"^Example:", re.MULTILINE)


def _math(match: re.Match[str]) -> str:
    indent, first, block = match.groups()
    latex = " ".join(f"{first}\n{block}".split())
    if r"\\" in latex:
        latex = rf"\begin{{aligned}} {latex} \end{{aligned}}"
    return f"\n{indent}$${latex}$$\n\n"


def to_markdown(text: str) -> str:
    text = INLINE.sub(r"$\1$", MATH.sub(_math, text.rstrip("\n") + "\n"))
    text = DOCTEST.sub(lambda match: f"\n```pycon\n{match.group(0)}```\n", text)
    return EXAMPLE.sub("Examples:", LITERAL.sub(r"\1:", text))


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
