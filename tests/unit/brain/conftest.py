"""A database of the Brain for each test: a file, and the same on a real PostgreSQL where that is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.brain.database import Database
from tests.support.machine import postgres
from tests.support.training import stored

RUNS = ("succeeded", "own", "phases")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/data/brain.db"
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", url)
    monkeypatch.setenv("COLUMNS", "200")
    return url


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    found = Database(url)
    yield found
    found.close()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with stored runs: one has succeeded, the others were cut off."""
    root = tmp_path / "runs"
    for name in RUNS:
        stored.unpack(name, root, {})
    return root


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A PostgreSQL for all tests of one process."""
    if postgres.programs() is None:
        pytest.skip("install PostgreSQL (its initdb) to run this")
    with postgres.postgres() as where:
        yield f"postgresql://{where}"
