r"""A Markdown extension that turns ``$...$`` and ``$$...$$`` into MathML, so that pages need no script to show it.

`pymdownx.arithmatex` finds the formulas, ``math_core`` converts them; a command it does not know stops the build.
"""

from __future__ import annotations

from html import unescape
from typing import Any
from xml.etree import ElementTree

from markdown import Markdown
from markdown.treeprocessors import Treeprocessor
from math_core import LatexToMathML
from pymdownx.arithmatex import ArithmatexExtension

CONVERTER = LatexToMathML(fancy_error=False)


def to_mathml(latex: str, *, display: bool) -> str:
    return CONVERTER.convert_with_local_state(latex, displaystyle=display)


class _Formulas(Treeprocessor):
    def run(self, root: ElementTree.Element) -> None:
        for element in root.iter():
            if element.get("class") == "arithmatex":
                display = element.tag == "div"
                latex = (unescape(element.text or "") if display else element.text or "")[2:-2]
                element.text = self.md.htmlStash.store(to_mathml(latex, display=display))


class MathMLExtension(ArithmatexExtension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        super().extendMarkdown(md)
        md.treeprocessors.register(_Formulas(md), "mathml", 15)  # after the inline patterns, which have 20


def makeExtension(**settings: Any) -> MathMLExtension:  # noqa: N802
    return MathMLExtension(generic=True, **settings)
