"""Engine `job`: an Indexed Job of batch/v1, which every cluster has.

It scales in place (parallelism = completions), waits in queues of Kueue and Volcano, and can be a gang of Kubernetes.
Its controller never replaces a pod, because `backoffLimitPerIndex` is 0: the run decides what follows a failure. Seen
on Kubernetes 1.36: a worker that a scale step sends away does not count as a failed index, however it ends. The same
index may come again.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_elastic.adapters.kube import KubeError, Missing
from airflow_elastic.adapters.kube.hub import Hub, hub
from airflow_elastic.adapters.kube.resources import JOBS, PODS, SERVICES, Resource
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.engines.api import Capabilities, Finding, Job
from airflow_elastic.engines.kube.checks import doctor
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Change, Object, by_worker, read_job
from airflow_elastic.engines.kube.options import KubeOptions, options_of
from airflow_elastic.engines.kube.queues import gang_findings, kueue, native
from airflow_elastic.engines.kube.render.pod import JOB_LABEL, named, owner_labels, pod_template
from airflow_elastic.engines.kube.watch.pod_status import read_pod
from airflow_elastic.engines.kube.worker_places import fresh, size_of
from airflow_elastic.spec.errors import Problem, SubmitRefused
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.status import Waiting, WorkerPhase, WorkerStatus

#: How a Job is addressed: its resource, namespace and name.
Place = tuple[Resource, str, str]

_THERE = (WorkerPhase.PENDING, WorkerPhase.RUNNING)

INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


class JobKind:
    """batch/v1 Job."""

    name = "job"
    options = KubeOptions
    resource = JOBS
    container = "trainer"
    pod_label = JOB_LABEL
    longest_name = 57  # pods are named <job>-<index>; 63 letters become a host name
    scales_in_place = True

    def check(self, spec: RunSpec, options: KubeOptions) -> list[Problem]:
        """No further limits than those of every cluster engine."""
        return []

    def render(self, job: Job, options: KubeOptions) -> list[tuple[Resource, dict[str, Any]]]:
        """The Job, and a headless Service that gives its pods names."""
        index = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}}
        template = pod_template(job, options, container=self.container, index=index)
        template["spec"].setdefault("subdomain", job.name)
        metadata, size = named(job, options), job.workers + standby_in_queue(job, options)
        annotations = kueue.annotated(metadata["annotations"], job, options, size)
        owner = {**metadata, "labels": owner_labels(job, options), "annotations": annotations}
        body = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "metadata": owner,
            "spec": {
                "completionMode": "Indexed",
                "completions": size,
                "parallelism": size,
                "backoffLimitPerIndex": 0,
                "ttlSecondsAfterFinished": options.ttl_seconds,
                **native.scheduling(job, options),
                "template": template,
            },
        }
        service = {
            "apiVersion": SERVICES.api_version,
            "kind": SERVICES.kind,
            "metadata": metadata,
            # Names must exist before a worker is ready, because it becomes ready by its rendezvous.
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {JOB_LABEL: job.name},
            },
        }
        return [(JOBS, body), (SERVICES, service)]

    def workers(self, owner: Object) -> int:
        """`completions`."""
        return int(owner["spec"]["completions"])

    def index(self, pod: Object) -> int | None:
        """The pod's completion index."""
        value = pod["metadata"].get("labels", {}).get(INDEX_ANNOTATION)
        return None if value is None else int(value)

    def scaled(self, owner: Object, workers: int) -> Change:
        """Both numbers together, because they must be equal; and the gang must not need more."""
        numbers = {"parallelism": workers, "completions": workers}
        return Change({"spec": {**numbers, **native.scaled(owner, workers)}})

    def held(self, owner: Object) -> str | None:
        """Suspended: by a queue, or by a person."""
        return "the Job is suspended" if owner["spec"]["suspend"] else None

    def gone(self, owner: Object, index: int) -> WorkerStatus | None:
        """Complete and failed indexes stay so without their pods; a queue may not have admitted other indexes."""
        name, status = f"node-{index}", owner["status"]
        if index in _indexes(status["completedIndexes"]):
            return WorkerStatus(name, WorkerPhase.SUCCEEDED)
        if index in _indexes(status["failedIndexes"]):
            return WorkerStatus(name, WorkerPhase.LOST, reason="its pod was deleted")
        if status["failed"] is not None:
            return WorkerStatus(name, WorkerPhase.LOST, reason=f"the Job has failed: {status['failed']}")
        if index >= (room := owner["spec"]["admitted"]):
            reason = f"the queue has admitted {room} of {owner['spec']['completions']} workers"
            return WorkerStatus(name, WorkerPhase.PENDING, waiting=Waiting.QUEUED, reason=reason)
        return None

    def slim(self, owner: dict[str, Any]) -> dict[str, Any]:
        """Workers and how many a queue has admitted, suspension, indexes, the terminal condition; and whether the
        controller makes no more pods.
        """
        status, suspend = owner.get("status", {}), owner["spec"].get("suspend", False)
        conditions = {c["type"]: c for c in status.get("conditions", ()) if c["status"] == "True"}
        failed = conditions.get("Failed")
        completions = owner["spec"].get("completions", 0)
        admitted = owner["spec"].get("parallelism", completions) if kueue.is_queued(owner) else completions
        return {
            "metadata": {key: owner["metadata"][key] for key in ("name", "uid")},
            "spec": {
                "completions": completions,
                "admitted": admitted,
                "suspend": suspend,
                "queued": kueue.is_queued(owner),
                "gang": native.gang_of(owner),
            },
            "status": {
                "completedIndexes": status.get("completedIndexes", ""),
                "failedIndexes": status.get("failedIndexes", ""),
                "failed": failed.get("message", failed.get("reason")) if failed else None,
                "quiet": bool(conditions.keys() & {"Complete", "Failed"})
                or (suspend and "Suspended" in conditions),
            },
        }


def _indexes(text: str) -> set[int]:
    """`"1,3-5"` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= {*range(int(first), int(last or first) + 1)}
    return found


def standby_in_queue(job: Job, options: KubeOptions) -> int:
    """The standby workers that a Job has from the start: in a queue it cannot get further pods, so they need quota."""
    return job.spec.workers.standby if options.by_kueue or options.queueing == "volcano" else 0


class JobEngine(KubeEngine):
    """Workers as the pods of an Indexed Job."""

    kind = JobKind()

    @property
    def capabilities(self) -> Capabilities:
        """Standby workers, too."""
        return replace(super().capabilities, standby=True)

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """The findings of every kind; and the gangs of Jobs that the cluster supports."""
        return doctor(self.kind, self._access, namespace, look=gang_findings.findings)

    def _may_replace(self, job: Job, options: KubeOptions, owner: Object) -> bool:
        """Not in a queue that has admitted a number of pods: one more may be too many.

        And not if the worker must be beside the others, where there may be no room: a new job can go elsewhere.
        """
        queued = owner["spec"]["queued"] or options.queueing == "volcano"
        may = not queued and native.allows_replacement(owner["spec"]["gang"], job)
        return job.standby and may and options.topology is None

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Begin a generation for this attempt; pods of further indexes replace the pods of lost workers."""
        if not lost:
            return await super().rejoin(job, attempt)
        options = options_of(job.spec, self.kind.options)
        async with hub(self._reach(options)) as shared:
            try:
                return await self._replace(shared, job, options, attempt, lost)
            except Missing:
                return ()  # somebody has deleted the Job: the watch reports it
            except KubeError as error:
                if error.is_final:
                    raise SubmitRefused(str(error)) from error
                raise
            finally:
                self._changes += 1

    async def _replace(
        self, shared: Hub, job: Job, options: KubeOptions, attempt: int, lost: tuple[int, ...]
    ) -> tuple[int, ...]:
        files, place = self._files(job), (JOBS, options.namespace, job.name)
        pods = [pod for pod in await self._pods(shared, job, options) if self.kind.index(pod) in lost]
        await self._keep_logs(shared, job, options, pods)
        for index in lost:  # its pod may be on a node that does not answer, or ending
            labels = f"{JOB_LABEL}={job.name},{INDEX_ANNOTATION}={index}"
            await shared.client.delete_all(PODS, options.namespace, labels=labels, grace_seconds=0)
        owner = await shared.client.get(*place)
        ready = await self._ready(shared, job, options)
        others = partial(fresh, without={*ready, *(await asyncio.to_thread(files.standby)).lost})
        replacements = await asyncio.to_thread(files.rejoin, attempt, lost, others, ready)
        await self._grow(shared, place, owner, files)
        return replacements

    async def _grow(self, shared: Hub, place: Place, owner: dict[str, Any], files: JobObjects) -> None:
        """Let the Job have as many pods as its workers and standby workers need."""
        members, standby = await asyncio.to_thread(lambda: (files.newest_members(), files.standby()))
        if members is not None and self.kind.workers(owner) < (size := size_of(members, standby)):
            await shared.client.patch(*place, self.kind.scaled(owner, size).body)

    def _standby_from_the_start(self, job: Job, options: KubeOptions) -> int:
        return standby_in_queue(job, options)

    async def stand_by(self, job: Job) -> tuple[int, ...]:
        """Ask for pods of further indexes. Not in a queue: there the Job has had its standby workers from the start."""
        options = options_of(job.spec, self.kind.options)
        place = (JOBS, options.namespace, job.name)
        async with hub(self._reach(options)) as shared:
            try:
                owner = await shared.client.get(*place)
            except Missing:
                return ()
            files = self._files(job)
            slim = self.kind.slim(owner)
            if not self._may_replace(job, options, slim) or await asyncio.to_thread(lambda: files.closed):
                return ()
            workers = read_job(self.kind, slim, await self._pods(shared, job, options), {}).workers
            ended = {worker.index for worker in workers if worker.phase not in _THERE}
            before = (await asyncio.to_thread(files.standby)).nodes
            wanted = job.spec.workers.standby
            asked = await asyncio.to_thread(files.ask_standby, wanted, ended.__contains__)
            await self._grow(shared, place, owner, files)
            self._changes += 1
        return tuple(index for index in asked.nodes if index not in before) if asked else ()

    async def _ready(self, shared: Hub, job: Job, options: KubeOptions) -> tuple[int, ...]:
        standby = (
            (await asyncio.to_thread(self._files(job).standby)).nodes if job.spec.workers.standby else ()
        )
        pods = by_worker(self.kind, await self._pods(shared, job, options)) if standby else {}
        found = ((index, pods.get(f"node-{index}")) for index in standby)
        read = ((index, read_pod(dict(pod), self.kind.container, "")) for index, pod in found if pod)
        return tuple(index for index, worker in read if worker.phase is WorkerPhase.RUNNING)
