"""A model of what stands behind a job on a cluster: API server, kubelets, agents, and watches that lag.

What makes and removes pods is one of `operators`. It hears of each kind of object apart from the others, at most
`HEARS_SECONDS` late, and acts on what it has heard. Time passes in ticks, at each of which somebody may do something,
by luck. Objects and pods are never changed, but replaced: who has heard of one keeps it as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.hub import Query
from airflow_elastic.adapters.kube.resources import EVENTS, PODS, Resource
from airflow_elastic.adapters.records.job_files import Result
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.engines.kube.render.strategic_merge import overlay
from airflow_elastic.runtime.pod import message
from airflow_elastic.spec.status import RankError

if TYPE_CHECKING:
    from tests.support.kubernetes.operators import Operator

Object = dict[str, Any]

TICK_SECONDS = 0.05
HEARS_SECONDS = 0.2
WATCH_SECONDS = 1.0
GRACE_SECONDS = 2.0

#: A container's end is in its status so long before the pod's phase says so.
PHASE_SECONDS = 1.1

#: How a worker's container ends that was sent away: its agent has left, or was told to end; or its end was not written.
ENDS: list[tuple[int, str | None]] = [(143, "left"), (143, "stopped"), (137, None), (1, "failed")]


def is_over(pod: Object) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def goes(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


class Listener:
    """What somebody has heard of the cluster, of each kind of object late by itself."""

    def __init__(self, luck: random.Random, seconds: float) -> None:
        self._luck, self._seconds = luck, seconds
        self.heard: dict[Resource, dict[str, Object]] = {}
        self._at: dict[Resource, float] = {}

    def hear(self, now: float, what: dict[Resource, dict[str, Object]]) -> bool:
        """Whether there is news."""
        before = dict(self.heard)
        for resource, objects in what.items():
            if self._luck.random() < 0.5 or now - self._at.get(resource, 0.0) >= self._seconds:
                self.heard[resource], self._at[resource] = objects, now
        return self.heard != before


class JobWorld:
    """One job, and time. It is the client, and the hub, of the engine under test.

    Args:
        operator: makes and removes the pods.
        files: gives the job's documents, as they are now.
        luck: decides what happens when.

    Attributes:
        objects: all but the pods, by kind and name.
        pods: by their names.
        killed: pods that were deleted without grace before they had ended.
    """

    def __init__(self, operator: Operator, files: Callable[[], JobObjects], luck: random.Random) -> None:
        self.client = self
        self.server = "the model"
        self.operator, self.luck, self._files = operator, luck, files
        self.objects: dict[Resource, dict[str, Object]] = {}
        self.pods: dict[str, Object] = {}
        self.killed: list[str] = []
        self.made = 0
        self.now = 0.0
        self._operator = Listener(luck, HEARS_SECONDS)
        self._watch = Listener(luck, WATCH_SECONDS)
        self._changed: list[asyncio.Event] = []
        self._gone_at: dict[str, float] = {}  # by uid
        self._over: dict[str, tuple[float, str]] = {}  # by uid, when a pod is in which phase
        self._begun: set[str] = set()  # uids
        self._members: tuple[int, ...] = ()  # as the agents have seen them

    # -- the API ---------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        return self.objects[resource][name]

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, part: str | None = None
    ) -> Object:
        assert part is None
        self.set(resource, name, overlay(self.objects[resource][name], body))
        return self.objects[resource][name]

    async def list(
        self, resource: Resource, namespace: str, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        assert resource in (PODS, EVENTS)
        return [*self.pods.values()] if resource == PODS else [], "1"

    async def delete_all(
        self, resource: Resource, namespace: str, *, fields: str, grace_seconds: int
    ) -> None:
        await self.delete(
            resource, namespace, fields.removeprefix("metadata.name="), grace_seconds=grace_seconds
        )

    async def delete(self, resource: Resource, namespace: str, name: str, *, grace_seconds: int) -> None:
        assert (resource, grace_seconds) == (PODS, 0)
        pod = self.pods.pop(name, None)
        if pod is not None and pod["metadata"]["uid"] not in self._over and not is_over(pod):
            self.killed.append(name)

    async def follow(self, name: str, *queries: Query) -> AsyncIterator[tuple[list[Object], ...]]:
        changed = asyncio.Event()
        self._changed.append(changed)
        try:
            while True:
                heard = self._watch.heard
                if all(query.resource in heard for query in queries):
                    yield tuple(
                        [query.slim(one) for one in heard[query.resource].values()] for query in queries
                    )
                await changed.wait()
                changed.clear()
        finally:
            self._changed.remove(changed)

    @contextlib.asynccontextmanager
    async def hub(self, access: Any) -> AsyncIterator[JobWorld]:
        yield self

    # -- what an operator does -------------------------------------------------------------------------------------

    def set(self, resource: Resource, name: str, body: Object) -> None:
        self.objects[resource] = {**self.objects.get(resource, {}), name: body}

    def make(self, name: str, labels: dict[str, str]) -> bool:
        """A pod; False where there is one of this name."""
        if name in self.pods:
            return False
        self.made += 1
        at = f"2026-01-01T00:00:{int(self.now) % 60:02d}Z"  # a second, and no less
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": f"uid-{self.made}",
                "labels": labels,
                "creationTimestamp": at,
            },
            "spec": {"nodeName": None},
            "status": {"phase": "Pending", "conditions": [], "containerStatuses": []},
        }
        return True

    def send_away(self, name: str) -> None:
        pod = self.pods.get(name)
        if pod is not None and not goes(pod):
            self._change(pod, metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"})
            self._gone_at[pod["metadata"]["uid"]] = self.now + GRACE_SECONDS

    # -- time ------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Have time pass, for ever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.now += TICK_SECONDS
            self._tick()

    def _tick(self) -> None:
        self._operator.hear(self.now, {**self.objects, PODS: dict(self.pods)})
        if self.luck.random() < 0.7:
            self.operator.act(self, self._operator.heard)
        if self.luck.random() < 0.1:
            self._look()
        for pod in [*self.pods.values()]:
            self._run(pod)
        if self._watch.hear(self.now, {**self.objects, PODS: dict(self.pods)}):
            for changed in self._changed:
                changed.set()

    # -- kubelets and agents ---------------------------------------------------------------------------------------

    def _run(self, pod: Object) -> None:
        phase, uid = pod["status"]["phase"], pod["metadata"]["uid"]
        if is_over(pod):
            if goes(pod) and not self.operator.holds_pods:
                self.pods.pop(pod["metadata"]["name"])
        elif uid in self._over:
            if self.now >= self._over[uid][0]:
                self._change(pod, status={"phase": self._over[uid][1]})
        elif phase == "Pending" and goes(pod):
            if self.operator.holds_pods:
                self._change(pod, status={"phase": "Failed"})
            else:
                self.pods.pop(pod["metadata"]["name"])
        elif phase == "Pending" and self.luck.random() < 0.2:
            status = {"phase": "Running", "containerStatuses": [self._container({"running": {}})]}
            self._change(pod, spec={"nodeName": "machine"}, status=status)
        elif phase == "Running" and goes(pod):
            if self.now >= self._gone_at[uid] or self.luck.random() < 0.05:
                self._end(pod, *self.luck.choice(ENDS if uid in self._begun else [(137, None)]))
        elif phase == "Running" and uid not in self._begun:
            if self.luck.random() < 0.1:
                self._begin(pod)
        elif phase == "Running" and self._is_left_out(pod) and self.luck.random() < 0.05:
            self._end(pod, 143, "left")  # nobody has told it, and it has seen that it is to leave

    def _is_left_out(self, pod: Object) -> bool:
        return self.operator.number(pod) not in self._members

    def _begin(self, pod: Object) -> None:
        """As the agent does: a worker has one life, and is among the workers of the job, or ends at once."""
        number, files = self.operator.number(pod), self._files()
        joined = files.joined(number)
        life = {"uid": pod["metadata"]["uid"]}
        if joined is None or not files.create(f"node-{number}/agent-{joined:04d}.json", life):
            self._end(pod, 1, "lost")
        else:
            self._begun.add(pod["metadata"]["uid"])
            self._look()

    def _look(self) -> None:
        newest = self._files().newest_members()
        self._members = newest.all if newest is not None else ()

    def _end(self, pod: Object, code: int, outcome: str | None) -> None:
        failed = (RankError(exit_code=1, error="RuntimeError: as it left"),) if outcome == "failed" else ()
        text = "" if outcome is None else message(Result(outcome, 0.0, failed)).decode()
        state = self._container({"terminated": {"exitCode": code, "message": text}})
        self._change(pod, status={"containerStatuses": [state]})
        self._over[pod["metadata"]["uid"]] = self.now + PHASE_SECONDS, "Failed" if code else "Succeeded"

    def _container(self, state: Object) -> Object:
        return {"name": self.operator.engine.kind.container, "state": state}

    def _change(self, pod: Object, **parts: Object) -> None:
        changed = {part: {**pod[part], **more} for part, more in parts.items()}
        self.pods[pod["metadata"]["name"]] = {**pod, **changed}
