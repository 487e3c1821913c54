"""The table of places in the code leads to files, and to names in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/explanation/architecture.md"


def test_each_place_exists() -> None:
    table = PAGE.read_text().partition("## Where is what in the code")[2]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "`" in row][1:]
    assert len(rows) >= 15
    for row in rows:
        for path, name in re.findall(r"`([\w/]+\.py)`(?:: `(\w+)`)?", row):
            code = (ROOT / "airflow_elastic" / path).read_text()
            assert not name or re.search(rf"\b{name}\b", code), row
