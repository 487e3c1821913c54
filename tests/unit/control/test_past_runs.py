"""What the memory of past runs does for a run that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.control.scaling.past_runs import (
    PastRuns,
    PastRunsObserver,
    as_started,
    pool_of,
    proposed,
)
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.scaling.observation import Capacity
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from airflow_elastic.spec.scaling.workers import Workers
from tests.support.builders import LIVE, spec, story
from tests.support.runs.watched import submitted, trained, write_run

SHARED = spec(
    workers=Workers(4, min=1, max=8), scaling_policy=ScalingPolicy(capacity=CapacityRule()), brain="cluster"
)


@pytest.fixture(autouse=True)
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", f"sqlite:///{tmp_path}/brain.db")


async def test_a_run_whose_workers_wait_gets_room_from_one_that_has_more() -> None:
    past, state = PastRuns(), story(*LIVE, run=SHARED)

    async def share(uri: str, there: int, free: int = 0) -> int:
        found = await past.share(uri, state, Capacity(5.0, free), (), there)
        assert found is not None
        return found.workers

    assert await share("/runs/first", 8) == 8
    assert await share("/runs/second", 0) == 4  # its own four wait, and take nothing of the eight
    assert await share("/runs/first", 8) == 4
    assert await share("/runs/first", 4, 4) == 4
    assert await share("/runs/second", 4) == 4
    for mode in ("manual", "single", None):
        other = story(*LIVE, run=replace(SHARED, brain=mode))
        assert await past.share("/runs/first", other, Capacity(5.0, 0), (), 8) is None
    await past.close()


async def test_at_its_end_a_run_is_remembered_and_its_share_is_free(tmp_path: Path) -> None:
    same = {name: getattr(SHARED, name) for name in ("workers", "scaling_policy", "brain")}
    store = write_run(tmp_path / "runs" / "one", submitted(), progress=trained(1000), **same)
    past, state = PastRuns(), story(*LIVE, ev.RunEnded(9.0, "succeeded", "done"), run=SHARED)
    going = story(*LIVE, run=SHARED)
    assert await past.share(store.uri, going, Capacity(5.0, 0), (), 8) is not None
    await PastRunsObserver(store).on_end(state)
    alone = await past.share("/runs/other", going, Capacity(6.0, 8), (), 0)
    assert alone is not None
    assert alone.workers == 8
    assert [one.workers for one in await past.learnt(going)] == [2]
    await past.close()


def test_a_run_without_a_memory_starts_as_it_is(tmp_path: Path) -> None:
    assert proposed(spec(), "/runs/one") == ()
    assert not (tmp_path / "brain.db").exists()
    assert as_started(SHARED, proposed(SHARED, "/runs/one")) == SHARED


def test_runs_share_a_queue_and_not_only_its_name() -> None:
    def pool(**options: str) -> str:
        return pool_of(spec(engine="job", engine_options={"context": "prod", **options}))

    assert pool(queue="team", namespace="a") == pool(queue="team", namespace="a")
    assert pool(queue="team", namespace="a") != pool(queue="team", namespace="b"), (
        "Kueue's are of a namespace"
    )
    volcano = {"queue": "team", "queueing": "volcano"}
    assert pool(**volcano, namespace="a") == pool(**volcano, namespace="b"), "Volcano's are of the cluster"
    assert pool(namespace="a") == pool(namespace="b") != pool(queue="team")
