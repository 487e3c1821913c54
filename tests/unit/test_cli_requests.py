"""What `airflow-elastic checkpoint --wait` takes for the answer to its request."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from airflow_elastic.adapters import checkpoints
from airflow_elastic.adapters.stores import open_store
from airflow_elastic.cli import requests
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec import layout
from airflow_elastic.spec.manifest import Manifest
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("saves", "answer"),
    [
        ([(20, "requested", "")], 20),
        ([(20, "steps", ""), (27, "requested", "")], 27),  # 20 was on its way already
        ([(20, "steps", ""), (30, "steps", "")], 30),  # it was asked at step 30, which is saved anyway
        ([(20, "breakpoint", "")], 20),  # the run was scaled just then
        ([(90, "requested", "another run's"), (20, "requested", "")], 20),
    ],
)
def test_what_was_saved_before_is_not_taken_for_the_answer(
    saves: list[tuple[int, str, str]], answer: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path))
    start_run(store, RunSpec(("train.py",)), engine=FakeEngine())
    coming = [(10, "steps", ""), *saves]

    def commit(_: float = 0.0) -> None:
        step, reason, run = coming.pop(0)
        data = layout.checkpoint_data(step, 1, 1)
        assert checkpoints.commit(store, Manifest(step, 1, 1, 1, 0.0, data, (), reason=reason, run=run))

    commit()
    monkeypatch.setattr(requests, "time", SimpleNamespace(sleep=commit, monotonic=time.monotonic))
    done = CliRunner().invoke(requests.checkpoint, [str(tmp_path), "--wait"])
    assert f"checkpoint {answer} committed" in done.output, done.output
    assert coming == []
