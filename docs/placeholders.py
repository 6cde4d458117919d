"""A Markdown extension that writes the tables of ``registry.py`` into the pages."""

from __future__ import annotations

from typing import Any

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor
from registry import PLACES


class _Fill(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        filled: list[str] = []
        for line in lines:
            make = PLACES.get(line.strip())
            filled += [line] if make is None else make().splitlines()
        return filled


class PlaceholderExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(_Fill(md), "registry", 40)  # before HTML blocks are taken out, which have 20


def makeExtension(**settings: Any) -> PlaceholderExtension:  # noqa: N802
    return PlaceholderExtension(**settings)
