"""One real Airflow for all tests of this folder; it costs about 15 s, so it starts with the first that asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.testing.standalone import Standalone

DAGS = Path(__file__).parent / "dags"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "standalone" in getattr(item, "fixturenames", ()):
            item.add_marker("airflow")


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A healthy Airflow over tests/airflow/dags; a space in its home, for what quotes badly."""
    running = Standalone(tmp_path_factory.mktemp("air flow"), DAGS)
    running.start()
    try:
        yield running
    finally:
        running.stop(detached=True)
