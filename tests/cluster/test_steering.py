"""What people ask of a run on a cluster: another machine, and an earlier checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.core.state import Cause
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes.cluster import on_every_engine, pods_of


def machines(pods: list[dict[str, Any]]) -> set[str]:
    return {str(pod["spec"]["nodeName"]) for pod in pods if pod["spec"].get("nodeName")}


@on_every_engine
async def test_a_run_leaves_an_excluded_machine_and_goes_back_to_a_chosen_checkpoint(
    engine_name: str, shared_folder: Path, pod_options: dict[str, Any], namespace: str, client: Client
) -> None:
    spec = training(engine_name, pod_options, "--epochs=4000", "--step-seconds=0.05")
    async with driving(shared_folder / "run", spec) as driven:
        await driven.until(lambda: driven.state.checkpoints >= 2, "two checkpoints")
        before = machines(await pods_of(driven, client, namespace))
        placed = await driven.until(
            lambda: {one["machine"] for one in driven.run.status()["placement"]} - {None},  # type: ignore[attr-defined]
            "the controller to see machines",
        )
        assert placed == before
        machine = min(before)
        driven.run.ask_exclude(machine, by="ada")
        await driven.until(lambda: driven.state.avoid == (machine,), "the machine to be excluded")
        assert len(driven.state.attempts) == 1  # the current attempt stays where it is
        chosen = checkpoints.steps(driven.run.store)[0]
        driven.run.ask_resume(chosen, by="ada")
        await driven.until(lambda: len(driven.state.attempts) == 2, "the second attempt")
        assert await driven.gone_on() == chosen
        after = machines(await pods_of(driven, client, namespace))
        driven.run.ask_stop(by="test")
        state = await driven.end()
    assert machine not in after
    assert after
    assert [attempt.cause for attempt in state.attempts] == [Cause.RESUME, Cause.STOP]
    assert state.restarts_used == 0
