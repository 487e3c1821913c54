"""Runs on a real cluster that choose their number of workers themselves, while its capacity changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.brain import allocation
from airflow_elastic.brain.database import Database
from airflow_elastic.brain.errors import URL_VARIABLE
from airflow_elastic.control import Run
from airflow_elastic.control.scaling.past_runs import pool_of
from airflow_elastic.core.scaling.decide import decide
from airflow_elastic.core.state import RunState
from airflow_elastic.engines import Job, find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.spec.events import ScaleDecided
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.scaling.policy import CapacityRule, ScalingPolicy
from tests.cluster.kinds.test_training import training, world
from tests.support.cli import COMMAND
from tests.support.driving import Driven, driving
from tests.support.machine.patience import until_async

#: A third of a node, so that a few pods of others fill the cluster.
SLOT = "7Gi"

POLICY = ScalingPolicy(
    capacity=CapacityRule(after_seconds=2.0),
    interval_seconds=1.0,
    up_seconds=3.0,
    down_seconds=5.0,
    snooze_seconds=5.0,
)


def slots(workers: Workers, options: dict[str, Any], *words: str, **changes: Any) -> RunSpec:
    return training("job", options, *words, workers=workers, scaling_policy=POLICY, **changes)


def workers(count: int, most: int) -> Workers:
    return Workers(count, min=1, max=most, resources={"memory": SLOT}, gather_seconds=5.0)


async def room(spec: RunSpec) -> int:
    engine = find_engine("job")
    assert isinstance(engine, KubeEngine)
    found = (await engine.room(spec)).workers
    assert found is not None
    return found


@asynccontextmanager
async def filled(client: Client, namespace: str, spec: RunSpec, *, but: int) -> AsyncIterator[list[str]]:
    """Pods of others take all room but for so many workers; the names of these pods."""
    names = [f"other-{number}" for number in range(await room(spec) - but)]
    for name in names:
        await somebody(client, namespace, name, spec.engine_options["image"])
    await until_async(lambda: _is(room(spec), but), f"room for {but} workers")
    yield names


async def _is(count: Any, wanted: int) -> bool | None:
    return (await count) == wanted or None


async def somebody(client: Client, namespace: str, name: str, image: str, **spec: Any) -> None:
    container = {
        "name": "c",
        "image": image,
        "command": ["sleep", "9999"],
        "resources": {"requests": {"memory": SLOT}},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }
    await client.create(PODS, namespace, body)


def steps_of(driven: Driven) -> Iterator[ScaleDecided]:
    """The steps by the policy; each decision is made again from what the journal has."""
    spec = driven.state.spec
    assert spec.scaling_policy is not None
    for event in Journal(driven.run.store).read():
        if isinstance(event, ScaleDecided):
            assert decide(spec.scaling_policy, spec.workers, event.seen) == event.decision
            if event.decision.acts:
                yield event


def check_each_sample_once(folder: Path, steps: int) -> None:
    """640 samples an epoch of 10 steps. A step that is repeated has the same samples, in a later generation."""
    seen: dict[int, dict[str, list[int]]] = {}
    for file in sorted(folder.iterdir()):
        generation = file.name.rsplit("-r", 1)[0]
        for line in file.read_text().splitlines():
            step, *samples = map(int, line.split())
            seen.setdefault(step, {}).setdefault(generation, []).extend(samples)
    assert [step for step in sorted(seen) if step <= steps] == list(range(1, steps + 1))
    for epoch in range(steps // 10):
        final = [list(seen[step].values())[-1] for step in range(10 * epoch + 1, 10 * epoch + 11)]
        assert sorted(sample for one in final for sample in one) == list(range(640))


@pytest.mark.siblings("a policy gives back what others need")
async def test_it_uses_what_is_free_and_gives_back_what_others_need(
    namespace: str, client: Client, pod_options: dict[str, Any], priority: str, shared_folder: Path
) -> None:
    seen = shared_folder / "samples"
    seen.mkdir()
    options = {**pod_options, "namespace": namespace}
    spec = slots(workers(1, 3), options, "--epochs=40", "--sample-seconds=0.003", f"--samples={seen}")
    async with (
        filled(client, namespace, spec, but=1) as others,
        driving(shared_folder / "run", spec) as driven,
    ):
        await driven.until(lambda: world(driven) == 1, "1 rank")
        for name in others[:2]:
            await client.delete(PODS, namespace, name, grace_seconds=0)
        await driven.until(lambda: world(driven) == 3, "3 ranks in the room that is free now")
        await driven.at_step(driven.step + 5)
        assert len(list(steps_of(driven))) <= 2
        image = str(options["image"])
        await somebody(client, namespace, "urgent", image, priorityClassName=priority)
        await driven.until(lambda: world(driven) == 2, "2 ranks, and room for the urgent pod")

        async def runs() -> bool | None:
            pod = await client.get(PODS, namespace, "urgent")
            return pod["spec"].get("nodeName") is not None or None

        await until_async(runs, "the urgent pod to be placed")
        state = await driven.end()
        steps = [(one.decision.workers, one.decision.rule) for one in steps_of(driven)]
    assert state.outcome == "succeeded", state.reason
    assert (len(state.attempts), state.restarts_used) == (1, 0), "each step was made in place"
    assert steps[-1] == (2, "capacity")
    assert len(steps) <= 3, steps
    check_each_sample_once(seen, 400)


@pytest.mark.slow  # of every commit: the one above, where a pod of others is what is urgent
async def test_of_two_runs_the_urgent_one_gets_its_room_and_the_other_loses_no_sample(
    namespace: str, client: Client, pod_options: dict[str, Any], priority: str, shared_folder: Path
) -> None:
    seen = shared_folder / "samples"
    seen.mkdir()
    options = {**pod_options, "namespace": namespace}
    low = slots(workers(2, 2), options, "--epochs=4000", "--sample-seconds=0.003", f"--samples={seen}")
    urgent = training(
        "job",
        {**options, "priority_class": priority},
        "--epochs=3",
        "--step-seconds=0.05",
        workers=Workers(1, resources={"memory": SLOT}),
    )
    async with filled(client, namespace, low, but=2), driving(shared_folder / "low", low) as first:
        await first.until(lambda: world(first) == 2, "2 ranks")
        await first.at_step(10)
        async with driving(shared_folder / "urgent", urgent) as second:
            await first.until(lambda: world(first) == 1, "one worker to leave for the urgent run")
            state = await second.end()
            assert state.outcome == "succeeded", state.reason
        await first.until(lambda: world(first) == 2, "2 ranks again, when the urgent run has ended")
        await first.at_step(first.step + 5)
        first.run.ask_stop(by="test")
        state = await first.end()
    assert (len(state.attempts), state.restarts_used) == (1, 0)
    assert state.checkpoint is not None
    check_each_sample_once(seen, state.checkpoint.step // 10 * 10)


#: Room alone makes no run smaller; only its share does.
SHARED = replace(POLICY, capacity=CapacityRule(give_back=False))


@asynccontextmanager
async def driven_elsewhere(folder: Path, spec: RunSpec) -> AsyncIterator[tuple[Driven, Path]]:
    """The same as `driving`, by a controller in a process of its own; and the file with all that it says."""
    written, said = folder.with_suffix(".json"), folder.with_suffix(".log")
    written.write_text(json.dumps(spec.to_dict()))
    run = Run(open_store(str(folder)))
    with said.open("w") as output:
        command = [*COMMAND, "run", "--uri", str(folder), "--spec", str(written)]
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)

    async def over() -> RunState:
        await process.wait()
        return run.state

    async def begun() -> bool:
        assert process.returncode is None, said.read_text()
        return Journal(run.store).read() != []

    await until_async(begun, "a run")
    task = asyncio.create_task(over())
    try:
        yield Driven(run, task), said
    finally:
        if process.returncode is None:
            process.kill()
            state = await task
            engine, attempt = find_engine(spec.engine), state.attempt
            job = Job(str(folder), state.spec, attempt.home or attempt.number, attempt.workers)
            await engine.delete(job, 0.0)
            await engine.close(job)
        await task


@pytest.mark.slow
async def test_two_runs_follow_the_shares_of_one_database_and_go_on_without_it(
    namespace: str,
    client: Client,
    pod_options: dict[str, Any],
    priority: str,
    shared_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, seen = shared_folder / "brain.db", shared_folder / "samples"
    seen.mkdir()
    monkeypatch.setenv(URL_VARIABLE, f"sqlite:///{file}")
    options = {**pod_options, "namespace": namespace}
    words = ("--epochs=4000", "--sample-seconds=0.003")
    shared: dict[str, Any] = {"scaling_policy": SHARED, "brain": "cluster"}
    low = training("job", options, *words, f"--samples={seen}", workers=workers(1, 3), **shared)
    urgent = {**options, "priority_class": priority}
    high = training("job", urgent, *words, workers=workers(1, 2), **shared)
    async with filled(client, namespace, low, but=3), driving(shared_folder / "low", low) as first:
        await first.until(lambda: world(first) == 3, "3 ranks, alone")
        async with driven_elsewhere(shared_folder / "high", high) as (second, said):
            await second.until(lambda: world(second) == 2, "2 ranks of the urgent run")
            await first.until(lambda: world(first) == 1, "what is left")
            database = Database()
            version, found = allocation.read(database, pool_of(low))
            database.close()
            assert version > 2, "each of them has written"
            given = {Path(run).name: share.workers for run, share in found.shares().items()}
            assert given == {"low": 1, "high": 2}
            (*_, shrunk), (*_, grown) = steps_of(first), steps_of(second)
            assert [(one.decision.rule, one.decision.workers) for one in (shrunk, grown)] == [
                ("share", 1),
                ("share", 2),
            ]
            file.unlink()
            file.mkdir()
            lost = "the memory of past runs is not used"
            await first.until(lambda: lost in caplog.text, "the loss to be noticed")
            await second.until(lambda: lost in said.read_text(), "the loss to be noticed by the other one")
            before = first.step, second.step
            await first.at_step(before[0] + 10)
            await second.at_step(before[1] + 10)
            assert (world(first), world(second)) == (1, 2)
            second.run.ask_stop(by="test")
            state = await second.end()
            assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 1, 0), (
                said.read_text()
            )
        await first.until(lambda: world(first) == 3, "3 ranks in the room that is free, with no database")
        first.run.ask_stop(by="test")
        state = await first.end()
    assert (state.outcome, len(state.attempts), state.restarts_used) == ("stopped", 1, 0)
    assert state.checkpoint is not None
    check_each_sample_once(seen, state.checkpoint.step // 10 * 10)
