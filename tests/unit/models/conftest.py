"""A model URI in a folder, and one on S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from tests.support.s3 import S3Server, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(params=["folder", "s3"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A model URI where nothing is promoted."""
    if request.param == "folder":
        return open_store(str(tmp_path / "model"))
    server: S3Server = request.getfixturevalue("server")
    return server.store()
