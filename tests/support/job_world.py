"""A model of what stands behind an Indexed Job: API server, Job controller, kubelets, and watches that lag.

Time passes in ticks, at each of which somebody may do something, by luck. The controller hears of the job and of its
pods apart from each other, at most `HEARS_SECONDS` late, and acts on what it has heard; as Kubernetes' own (1.31 to
1.37) it holds a terminating pod of an index that the job has for failed, and the index with it, for ever
(`backoffLimitPerIndex: 0`).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.adapters.jobfiles import Result
from airflow_elastic.adapters.kube.resources import JOBS, PODS, Resource
from airflow_elastic.engines.kube.job import INDEX_ANNOTATION
from airflow_elastic.engines.kube.pod import JOB_LABEL
from airflow_elastic.engines.kube.read import slim
from airflow_elastic.runtime.pod import message
from airflow_elastic.spec.status import RankError

TICK_SECONDS = 0.05
HEARS_SECONDS = 0.2
GRACE_SECONDS = 2.0

#: How a worker's container ends that was sent away: its agent has left, or was told to end; or its end was not written.
_ENDS: list[tuple[int, str | None]] = [
    (143, "left"),
    (143, "stopped"),
    (137, None),
    (0, "succeeded"),
    (1, "failed"),
]


def _number(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][INDEX_ANNOTATION])


def _is_over(pod: dict[str, Any]) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _goes(pod: dict[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


@dataclass
class JobWorld:
    """One job, and time. It is the client, and the hub, of the engine under test."""

    name: str
    luck: random.Random
    job: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    killed: list[str] = field(default_factory=list)
    made: int = 0
    watched: asyncio.Queue[tuple[Any, ...]] = field(default_factory=asyncio.Queue)

    def __post_init__(self) -> None:
        self.client = self
        self._pods: dict[str, dict[str, Any]] = {}
        self._gone_at: dict[str, float] = {}
        self._heard: dict[str, Any] = {"job": {}, "pods": {}}  # by the controller
        self._shown: dict[str, Any] = {"job": {}, "pods": {}}  # by the watch
        self._late: dict[str, float] = {}
        self._expects: set[str] = set()

    # -- the API ---------------------------------------------------------------------------------------------------

    async def get(
        self, resource: Resource, namespace: str, name: str, part: str | None = None
    ) -> dict[str, Any]:
        assert (resource, name) == (JOBS, self.name)
        return copy.deepcopy(self.job)

    async def patch(
        self, resource: Resource, namespace: str, name: str, body: Any, part: str | None = None
    ) -> Any:
        assert (resource, name) == (JOBS, self.name)
        self.job["spec"].update(body["spec"])
        return copy.deepcopy(self.job)

    async def list(
        self, resource: Resource, namespace: str, **selectors: Any
    ) -> tuple[list[dict[str, Any]], str]:
        assert resource == PODS
        return [copy.deepcopy(pod) for pod in self._pods.values()], "1"

    async def delete_all(
        self, resource: Resource, namespace: str, *, fields: str, grace_seconds: int
    ) -> None:
        uid = fields.removeprefix("metadata.name=")
        assert (resource, grace_seconds) == (PODS, 0)
        if not _is_over(self._pods[uid]):
            self.killed.append(uid)
        self._pods.pop(uid)

    async def follow(self, name: str, *queries: Any) -> AsyncIterator[tuple[Any, ...]]:
        while True:
            yield await self.watched.get()

    @contextlib.asynccontextmanager
    async def hub(self, access: Any) -> AsyncIterator[JobWorld]:
        yield self

    # -- time ------------------------------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds / TICK_SECONDS))):
            await self.tick()

    async def tick(self) -> None:
        """Time goes on, and everybody may do something; whoever watches the job is told what the watch shows now."""
        self.now += TICK_SECONDS
        self._hear(self._heard, "controller", HEARS_SECONDS)
        if self.luck.random() < 0.7:
            self._control()
        for pod in self._pods.values():
            self._run(pod)
        self._hear(self._shown, "watch", 1.0)
        owner, pods = self._shown["job"], self._shown["pods"]
        if owner:
            self.watched.put_nowait(([_slim(owner)], [slim(pod) for pod in pods.values()]))
        for _ in range(6):
            await asyncio.sleep(0)

    def _hear(self, whose: dict[str, Any], who: str, seconds: float) -> None:
        for what, now in (("job", self.job), ("pods", self._pods)):
            key = f"{who} {what}"
            if self.luck.random() < 0.5 or self.now - self._late.get(key, 0.0) >= seconds:
                whose[what], self._late[key] = copy.deepcopy(now), self.now

    # -- the controller --------------------------------------------------------------------------------------------

    def _control(self) -> None:
        job, pods = self._heard["job"], self._heard["pods"]
        if not job:
            return
        completions, status = job["spec"]["completions"], self.job["status"]
        failed = {i for i in status["failed"] if i < completions}
        done = {i for i in status["done"] if i < completions}
        for uid, pod in pods.items():
            index = _number(pod)
            if index < completions and pod["status"]["phase"] == "Succeeded":
                done.add(index)
            elif index < completions and (_is_over(pod) or _goes(pod)):
                failed.add(index)
            if _is_over(pod) and _goes(pod):  # its finalizer goes, and with it the pod
                self._pods.pop(uid, None)
        status["failed"], status["done"] = failed - done, done
        if self._expects - pods.keys():
            return  # it has made pods that it has not heard of yet
        self._expects.clear()
        active = {_number(pod): uid for uid, pod in pods.items() if not _is_over(pod) and not _goes(pod)}
        for index, uid in active.items():
            if index >= completions and uid in self._pods:
                self._send_away(self._pods[uid])
        for index in range(completions):
            if index not in active and index not in failed | done:
                self._make(index)

    def _make(self, index: int) -> None:
        self.made += 1
        uid = f"pod-{self.made}"
        labels = {JOB_LABEL: self.name, INDEX_ANNOTATION: str(index)}
        at = f"2026-01-01T00:00:{int(self.now) % 60:02d}Z"  # a second, and no less
        self._pods[uid] = {
            "metadata": {"name": uid, "uid": uid, "labels": labels, "creationTimestamp": at},
            "spec": {"nodeName": None},
            "status": {"phase": "Pending", "conditions": [], "containerStatuses": []},
        }
        self._expects.add(uid)

    def _send_away(self, pod: dict[str, Any]) -> None:
        if not _goes(pod):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
            self._gone_at[pod["metadata"]["uid"]] = self.now + GRACE_SECONDS

    # -- kubelets ----------------------------------------------------------------------------------------------------

    def _run(self, pod: dict[str, Any]) -> None:
        phase, late = pod["status"]["phase"], self.now >= self._gone_at.get(pod["metadata"]["uid"], 1e9)
        if phase == "Pending" and _goes(pod):
            pod["status"]["phase"] = "Failed"
        elif phase == "Pending" and self.luck.random() < 0.2:
            pod["spec"]["nodeName"] = "machine"
            pod["status"] |= {"phase": "Running", "containerStatuses": [_container({"running": {}})]}
        elif phase == "Running" and _goes(pod) and (late or self.luck.random() < 0.05):
            code, outcome = self.luck.choice(_ENDS)
            errors = (
                (RankError(exit_code=1, error="RuntimeError: as it left"),) if outcome == "failed" else ()
            )
            text = "" if outcome is None else message(Result(outcome, 0.0, errors)).decode()
            ended = {"exitCode": code, "message": text}
            state = _container({"terminated": ended})
            pod["status"] |= {"phase": "Failed" if code else "Succeeded", "containerStatuses": [state]}


def _container(state: dict[str, Any]) -> dict[str, Any]:
    return {"name": "trainer", "state": state}


def _slim(job: dict[str, Any]) -> dict[str, Any]:
    from airflow_elastic.engines.kube.job import JobKind

    status = job["status"]
    lists = {"failedIndexes": status["failed"], "completedIndexes": status["done"]}
    plain = {name: ",".join(map(str, sorted(indexes))) for name, indexes in lists.items()}
    return json.loads(json.dumps(JobKind().slim({**job, "status": plain})))
