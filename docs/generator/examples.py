"""Region of a page: the example DAGs, and what each of them is for."""

from __future__ import annotations

import ast
from pathlib import Path

from generator.markdown import table

ROOT = Path(__file__).parents[2]


def examples() -> str:
    """A row for each module in `dags/`, with the first paragraph of its docstring."""
    rows = []
    for path in sorted((ROOT / "dags").glob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text()))
        if text is None:
            raise SystemExit(f"{path.relative_to(ROOT)} has no docstring: say in a sentence what it does")
        rows.append([f"[{path.stem}](../../dags/{path.name})", " ".join(text.split("\n\n")[0].split())])
    return table(["DAG", "what it does"], rows)
