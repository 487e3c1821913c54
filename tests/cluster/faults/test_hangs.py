"""A hang, where all pods run and nothing of the cluster's says a word: each rank's stack is told before it is ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.core.state import FailureKind
from airflow_elastic.spec.events import Stalled
from airflow_elastic.spec.run import Health
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes.cluster import on_every_engine


@pytest.mark.slow
@on_every_engine
async def test_the_rank_that_stands_elsewhere_is_named_and_all_stacks_are_kept(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any]
) -> None:
    health = Health(no_progress_seconds=20.0)
    words = ("--epochs=400", "--step-seconds=0.05", "--hang-at=8", "--hang-rank=1")
    async with driving(
        shared_folder / "run", training(engine_name, pod_options, *words, health=health)
    ) as driven:
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        await driven.gone_on()
        driven.run.ask_stop(by="test")
        await driven.end()
        failure = driven.state.attempts[0].failure
        events = [event for event in Journal(driven.run.store).read() if isinstance(event, Stalled)]
    assert failure is not None
    assert failure.kind is FailureKind.NO_PROGRESS
    assert "; rank 1 stands at train.py:" in failure.reason
    assert ", rank 0 at train.py:" in failure.reason
    assert "rank 1, elsewhere than the others (most recent call first):" in (failure.traceback or "")
    (stalled,) = events
    assert {stack.ranks: stack.elsewhere for stack in stalled.stacks} == {(0,): False, (1,): True}
    logs = (shared_folder / "run" / "logs" / "attempt-0001").rglob("*rank-*.log")
    printed = {log.name for log in logs if "(most recent call first)" in log.read_text()}
    assert len(printed) == 2, printed
