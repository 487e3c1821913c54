"""The pages of the documentation, and what is printed in them to be copied."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")])

_FENCE = re.compile(
    r"(?P<notes>(?:^ *<!-- [^\n]* -->\n)*)^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[^\s`]*)(?P<info>[^\n`]*)\n"
    r"(?P<text>.*?)^(?P=indent)(?P=ticks) *$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    title: str | None
    """The file that it is to be written to: `title="train.py"` behind the language."""
    notes: dict[str, str]
    """The comments right above it that no reader sees: `<!-- not run: needs a cluster -->`."""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@cache
def blocks(*languages: str) -> list[Block]:
    """The blocks of all pages in these languages; without one, all blocks."""
    return [
        block for page in PAGES for block in blocks_of(page) if not languages or block.language in languages
    ]


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match["info"])
        notes = [note.strip().partition(":") for note in re.findall(r"<!-- (.*?) -->", match["notes"])]
        yield Block(
            page,
            text.count("\n", 0, match.start("ticks")) + 1,
            match["language"],
            textwrap.dedent(match["text"]),
            title[1] if title else None,
            {name: value.strip() for name, _, value in notes},
        )
