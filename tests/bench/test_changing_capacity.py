"""On a cluster whose capacity changes: a run that scales by its policy, beside the same run with a fixed size."""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.spec.events import ScaleDecided
from airflow_elastic.spec.run import RunSpec, Workers
from tests.bench.support.figures import count, heading
from tests.cluster.kinds.test_training import world
from tests.cluster.test_policies import POLICY, SLOT, room, slots, somebody
from tests.support.driving import Driven, driving
from tests.support.kubernetes import kube

pytestmark = pytest.mark.skipif(
    not os.environ.get("KUBECONFIG") or not os.environ.get(kube.CLUSTER),
    reason=f"set KUBECONFIG, and {kube.CLUSTER} to the program that can break that cluster",
)

#: Workers of the fixed run: as many as always fit.
FEWEST, MOST = 2, 6


@dataclass
class Others:
    """Pods of others, of a higher priority: they take all but so many slots, at moments that a seed chooses."""

    client: Client
    namespace: str
    image: str
    priority: str
    slots: int
    made: list[str] = field(default_factory=list)
    number: int = 0

    async def leave(self, free: int) -> None:
        """Let so many slots be free, or be asked for back from who has them."""
        while len(self.made) > self.slots - free:
            await self.client.delete(PODS, self.namespace, self.made.pop(), grace_seconds=0)
        while len(self.made) < self.slots - free:
            self.number += 1
            name = f"other-{self.number}"
            await somebody(self.client, self.namespace, name, self.image, priorityClassName=self.priority)
            self.made.append(name)

    async def waiting(self) -> int:
        pods, _ = await self.client.list(PODS, self.namespace, fields="spec.nodeName=")
        return sum(pod["metadata"]["name"].startswith("other-") for pod in pods)


def plan(luck: random.Random, seconds: float) -> list[tuple[float, int]]:
    """When how many slots are free for the run: at first the fewest, then another number every 40 to 70 s."""
    moments, at, now = [(0.0, FEWEST)], 0.0, FEWEST
    while (at := at + luck.uniform(40, 70)) < seconds - 30:
        now = luck.choice([n for n in range(FEWEST, MOST + 1) if n != now])
        moments.append((at, now))
    return moments


async def samples(
    spec: RunSpec, folder: Path, others: Others, moments: list[tuple[float, int]], seconds: float
) -> Any:
    """Steps done, scale steps, and for how long pods of others waited, in so many seconds from the first step on."""
    await others.leave(moments[0][1])
    waited = 0.0
    async with driving(folder, spec) as driven:
        await driven.until(lambda: world(driven) == FEWEST, "the first ranks")
        await driven.at_step(3)
        began, first = time.monotonic(), driven.step
        for (_, free), until in zip(moments, [at for at, _ in moments[1:]] + [seconds], strict=True):
            await others.leave(free)
            while (left := began + until - time.monotonic()) > 0:
                before = time.monotonic()
                await asyncio.sleep(min(left, 1.0))
                waited += await others.waiting() * (time.monotonic() - before)
        done = driven.step - first
        driven.run.ask_stop(by="bench")
        state = await driven.end()
        assert state.outcome == "stopped", state.reason
        assert all(attempt.failure is None for attempt in state.attempts), "nothing may have failed"
        return done, steps_of(driven), waited


def steps_of(driven: Driven) -> list[tuple[float, int]]:
    events = [event for event in Journal(driven.run.store).read() if isinstance(event, ScaleDecided)]
    return [(event.at, event.decision.workers) for event in events if event.decision.acts]


@pytest.mark.bench
@pytest.mark.timeout(3600)
async def test_capacity_that_changes(
    namespace: str, client: Client, pod_options: dict[str, Any], priority: str, shared_folder: Path
) -> None:
    seed, seconds = count("SEED", 7), float(count("SECONDS", 420))
    moments = plan(random.Random(seed), seconds)
    heading(f"{len(moments) - 1} changes of the capacity in {seconds:.0f} s, seed {seed}: {moments}")
    options = {**pod_options, "namespace": namespace}
    words = ("--epochs=4000", "--sample-seconds=0.03")
    each = Workers(FEWEST, min=1, max=MOST, resources={"memory": SLOT}, gather_seconds=5.0)
    policy = replace(POLICY, up_seconds=8.0, down_seconds=8.0, interval_seconds=2.0, snooze_seconds=15.0)
    grows = replace(slots(each, options, *words), scaling_policy=policy)
    fixed = replace(grows, scaling_policy=None, workers=replace(each, min=FEWEST, max=FEWEST))
    others = Others(client, namespace, str(options["image"]), priority, await room(grows))
    results = {}
    for name, spec in (("fixed", fixed), ("policy", grows)):
        done, steps, waited = await samples(spec, shared_folder / name, others, moments, seconds)
        results[name] = done
        print(
            f"    {name:8} {done:5} steps, {done / seconds:.2f} a second; {len(steps)} scale steps; "
            f"pods of others waited {waited:.0f} s",
            flush=True,
        )
    ideal = sum(
        (after - at) * free
        for (at, free), after in zip(moments, [at for at, _ in moments[1:]] + [seconds], strict=True)
    )
    print(f"    all of the free slots all the time: {ideal / (FEWEST * seconds):.2f} of the fixed size")
    ratio = results["policy"] / results["fixed"]
    kept = "kept" if ratio >= 1.3 else "MISSED"
    print(f"  goal: throughput over the fixed size >= 1.3: {ratio:.2f}, {kept}", flush=True)
    allowed = 2 * (len(moments) - 1)
    kept = "kept" if len(steps) <= allowed else "MISSED"
    print(f"  goal: at most 2 steps a change: {len(steps)} of {allowed}, {kept}", flush=True)
