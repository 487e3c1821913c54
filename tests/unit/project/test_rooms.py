"""The house: small rooms that say what they are for, and no two modules that import each other."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[3] / "airflow_elastic"
ROOMS = sorted({path.parent for path in PACKAGE.rglob("*.py")})
MOST = 12


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(PACKAGE.parent)))
def test_a_room_is_small_and_says_what_it_is_for(room: Path) -> None:
    modules = [path for path in room.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST, [path.name for path in modules]
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text())), "its __init__ has no docstring"


def test_no_two_modules_import_each_other() -> None:
    """Not for their types either: who needs a part of the other's says which, as a protocol."""
    graph = grimp.build_graph("airflow_elastic", cache_dir=None)
    pairs = {
        tuple(sorted((one, other)))
        for one in graph.modules
        for other in graph.find_modules_directly_imported_by(one)
        if one in graph.find_modules_directly_imported_by(other)
    }
    assert not sorted(pairs)
