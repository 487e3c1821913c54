"""What only a clock can tell: training that stands still though all pods run, and a run that takes too long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client, Missing
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.state import Cause, FailureKind
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.spec.run import Health
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes.cluster import on_every_engine, pod_spec, pods_of
from tests.support.machine.patience import until_async
from tests.support.runs.faults import Faults


@on_every_engine
@pytest.mark.slow
@pytest.mark.parametrize("which", [min, max], ids=["lead", "last"])
async def test_a_pod_that_freezes_is_found_by_the_clock_and_holds_up_nobody(
    which: Callable[[Iterable[str]], str],
    engine_name: str,
    shared_folder: Path,
    pod_options: dict[str, Any],
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    """Not even a kill ends what is frozen: its pod is left behind, with the machine that it is on."""
    health = Health(no_progress_seconds=10.0, grace_seconds=2.0)
    spec = training(engine_name, pod_options, "--epochs=4000", "--step-seconds=0.05", health=health)
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(7)
        pods = await pods_of(driven, client, namespace)
        faults.pod(namespace, which(pod["metadata"]["name"] for pod in pods), "freeze")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        first, committed = driven.state.attempts[0], driven.state.checkpoint
        assert first.failure is not None
        assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.NO_PROGRESS), first.failure
        assert committed is not None
        await driven.at_step(committed.step + 5)
        faults.heal()
        before = driven.step
        await driven.at_step(before + 5)
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 2, 1)
    assert state.attempts[1].from_step >= committed.step > 0


@on_every_engine
async def test_a_run_that_takes_too_long_is_ended_and_leaves_nothing(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    engine = find_engine(engine_name)
    assert isinstance(engine, KubeEngine)
    health = Health(grace_seconds=1.0)
    spec = pod_spec(engine_name, pod_options, "faults/forever.py", active_deadline_seconds=6.0, health=health)
    async with driving(shared_folder / "run", spec) as driven:
        state = await driven.end()
    assert (state.outcome, state.attempt.cause) == ("failed", Cause.DEADLINE)
    assert "the active deadline of 6 s has passed" in str(state.reason)
    with pytest.raises(Missing):
        await client.get(engine.kind.resource, namespace, str(state.attempt.job))

    async def none_left() -> bool:
        return not (
            await client.list(PODS, namespace, labels=f"{engine.kind.pod_label}={state.attempt.job}")
        )[0]

    await until_async(none_left, "the pods to go")
