"""A checkpoint is protected as long as anybody has pinned it."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.records import checkpoint_retention as retention
from airflow_elastic.adapters.records.checkpoints import CheckpointDamaged
from airflow_elastic.adapters.storage.empty_place import foreign_object
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.models import a_run

people = st.sampled_from(["anna", "bob", "run /runs/one, which starts from it"])


@given(st.lists(st.tuples(st.sampled_from(["pin", "release", "unpin"]), people), max_size=12))
def test_until_all_have_released_it(steps: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run, who = a_run(Path(folder) / "run", {10: {}, 20: {}}), set[str]()
        for verb, by in steps:
            if verb == "unpin":
                retention.unpin(run, 10)
                who.clear()
            elif verb == "pin":
                retention.pin(run, 10, by=by)
                who.add(by)
            else:
                retention.release(run, 10, by=by)
                who.discard(by)
            assert {one for one in ("anna", "bob") if retention.is_pinned_by(run, 10, one)} == who & {
                "anna",
                "bob",
            }
            assert retention.pinned(run) == ([10] if who else [])
            if who:
                assert retention.pins(run)[10].by in who
        assert foreign_object(run) is None, "a copy of the checkpoints is taken as a run's own"
        assert retention.prune(run, CheckpointPolicy(keep_last=1)) == ([] if who else [10])


def test_who_pins_it_while_another_one_releases_it(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {10: {}})
    for _ in range(200):
        retention.pin(run, 10, by="anna")
        threads = [
            threading.Thread(target=retention.release, args=(run, 10), kwargs={"by": "anna"}),
            threading.Thread(target=retention.pin, args=(open_store(run.uri), 10), kwargs={"by": "bob"}),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert retention.pinned(run) == [10]
        assert not retention.is_pinned_by(run, 10, "anna")
        retention.release(run, 10, by="bob")
        assert retention.pinned(run) == []


def test_what_does_not_exist_stays_free(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", {10: {}})
    for by in ("anna", "bob"):
        with pytest.raises(CheckpointDamaged, match="step 7 has no committed checkpoint"):
            retention.pin(run, 7, by=by)
    assert run.list("checkpoints/pins/") == []
