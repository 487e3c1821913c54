"""Runs below a prefix of S3 are learnt like those of a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.brain import memory
from airflow_elastic.brain.database import Database
from airflow_elastic.brain.learn import learn
from tests.support.s3 import s3_server
from tests.unit.brain.conftest import RUNS


def test_a_prefix_of_s3_is_a_root(database: Database, runs: Path) -> None:
    learn(database, str(runs))
    of_folder = memory.known(database)
    memory.forget(database, None)
    with s3_server() as server:
        root = server.store("all runs")
        for path in sorted(runs.rglob("*")):
            if path.is_file() and "checkpoints" not in path.parts:
                root.create(str(path.relative_to(runs)), path.read_bytes())

        def opens(uri: str) -> Store:
            return open_store(uri, s3_client_factory=server.session())

        found = learn(database, root.uri, opens=opens)
        assert sorted(found.read) == sorted(f"{root.uri}/{name}" for name in RUNS)
        assert learn(database, root.uri, opens=opens).unchanged == 1
    of_s3 = memory.known(database)
    assert [replace(one, uri="") for one in of_s3] == [replace(one, uri="") for one in of_folder]
    assert memory.forget(database, root.uri) == len(RUNS)
