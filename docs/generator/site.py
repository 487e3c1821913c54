"""What MkDocs calls while `make site` runs: files outside docs that a page links to become pages of the site.

So no link of the site leads to a place that a reader may not have, and MkDocs checks these links like all others.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".sh": "sh", ".json": "json"}

_FENCE = re.compile(r"^( *)(`{3,}).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")

#: The page of the site that shows a file outside docs -> that file.
_shown: dict[str, Path] = {}


def on_files(files: Files, config: Any) -> Files:
    _shown.clear()
    pending = [DOCS / file.src_uri for file in files.documentation_pages()]
    while pending:
        page = pending.pop()
        for name in re.findall(_LINK, _prose(page.read_text())):
            there = _target(page, name[1])
            if there is None or there.is_relative_to(DOCS) or not there.exists() or _uri(there) in _shown:
                continue
            _shown[_uri(there)] = there
            files.append(File.generated(config, _uri(there), content=_content(there)))
            if there.suffix == ".md":
                pending.append(there)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    uri = page.file.src_uri
    origin = _shown.get(uri, DOCS / uri)

    def lead(match: re.Match[str]) -> str:
        there = _target(origin, match[2])
        if there is None or not (uri in _shown or _uri(there) in _shown):
            return match[0]
        target = str(there.relative_to(DOCS)) if there.is_relative_to(DOCS) else _uri(there)
        anchor = match[2].partition("#")[2]
        back = os.path.relpath(target, Path(uri).parent)
        return f"{match[1]}{back}{'#' * bool(anchor)}{anchor}{match[3]}"

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(lead, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(lead, markdown[end:])])


def _prose(text: str) -> str:
    return _FENCE.sub("", text)


def _target(page: Path, link: str) -> Path | None:
    """The file or folder that a link leads to; None for another site, and for a place on the same page."""
    name = link.partition("#")[0]
    return None if "://" in link or not name else Path(os.path.normpath(page.parent / name))


def _uri(path: Path) -> str:
    name = str(path.relative_to(ROOT))
    return f"source/{name}" if path.suffix == ".md" else f"source/{name}.md"


def _content(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return head + "".join(
            f"- `{one.name}`\n" for one in sorted(path.iterdir()) if one.name[0] not in "._"
        )
    return f"{head}`````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}`````\n"
