"""Region of index.md: the navigation of mkdocs.yml, with the title of each page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[1]


class _Loader(yaml.SafeLoader):
    """Reads a file with tags that only MkDocs knows."""


_Loader.add_multi_constructor("", lambda *_: None)


def contents() -> str:
    nav = yaml.load((DOCS.parent / "mkdocs.yml").read_text(), _Loader)["nav"]  # a SafeLoader
    return "\n".join(_section(nav, 0)).strip("\n") + "\n"


def _section(entries: list[Any], depth: int) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            if entry != "index.md":
                yield f"- [{_title(entry)}]({entry})"
        else:
            ((name, inside),) = entry.items()
            yield from ("", f"## {name}" if depth == 0 else f"{name}:", "")
            yield from _section(inside, depth + 1)


def _title(page: str) -> str:
    text = (DOCS / page).read_text()
    return next(line for line in text.splitlines() if line.startswith("# ")).removeprefix("# ")
