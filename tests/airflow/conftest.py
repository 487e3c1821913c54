"""One real Airflow for all tests of this folder: about 15 s, so it starts with the first test that asks.

It ends with the last of them: it has a use for a processor even where no DAG runs.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Tests that import Airflow must not read, or make, the developer's own. (The harness sets its own home.)
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.tries import Try

DAGS = Path(__file__).parent / "dags"

#: Callbacks that the triggerer imports.
PLUGINS = Path(__file__).parent / "plugins"

#: Of role `user`: may start and clear DAG runs, and edit XComs.
EDITOR = "ada"

#: Of role `viewer`: may look at everything, and change nothing.
VIEWER = "vera"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "standalone" in getattr(item, "fixturenames", ()):
            item.add_marker("airflow")


@pytest.fixture(scope="package")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A healthy Airflow over tests/airflow/dags; with a space in its home, which finds what quotes badly."""
    running = Standalone(
        tmp_path_factory.mktemp("air flow"),
        DAGS,
        env={
            "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(PLUGINS),
            "AIRFLOW__ELASTIC__PAGE_ROOTS": str(tmp_path_factory.mktemp("roots")),
        },
        users={"admin": "admin", EDITOR: "user", VIEWER: "viewer"},
        progress=print,  # pytest shows it on a failure
    )
    running.start()
    try:
        yield running
    finally:
        running.stop(detached=True)


@pytest.fixture(scope="module")
def start(standalone: Standalone) -> Callable[..., Try]:
    def begin(dag: str, **conf: Any) -> Try:
        standalone.wait_for_dag(dag)
        return Try(standalone, dag, standalone.trigger(dag, conf))

    return begin


@pytest.fixture(scope="module")
def signs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a file ends the run of its name, as if its time were over."""
    return tmp_path_factory.mktemp("signs")
