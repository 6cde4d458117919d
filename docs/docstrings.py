"""Turns the docstrings, written for `help()`, into Markdown: doctests are fenced, `.. math::` becomes MathML."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert

MATH = re.compile(r"^([ ]*)\.\. math::[ ]*(.*)\n((?:\1[ ]+.*\n|[ ]*\n)*)", re.MULTILINE)
LITERAL = re.compile(r"^(.*\S)::[ ]*$", re.MULTILINE)
DOCTEST = re.compile(r"^([ ]*)>>> (?:.*\n)(?:\1.*\S.*\n)*", re.MULTILINE)


def _math(match: re.Match[str]) -> str:
    indent, first, block = match.groups()
    latex = " ".join(f"{first}\n{block}".split())
    if "&" in latex:
        latex = rf"\begin{{aligned}}{latex}\end{{aligned}}"
    return f"\n{indent}{convert(latex, display='block')}\n\n"


def _fence(match: re.Match[str]) -> str:
    indent = match.group(1)
    code = textwrap.indent(textwrap.dedent(match.group(0)), indent)
    return f"\n{indent}```pycon\n{code}{indent}```\n"


def to_markdown(text: str) -> str:
    text = MATH.sub(_math, text.rstrip("\n") + "\n")
    text = DOCTEST.sub(_fence, text)
    return LITERAL.sub(r"\1:", text)


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
