"""Submit, watch, scale and delete jobs on a cluster: the part that all kinds of jobs share.

Everything is idempotent, and is found by name and label, so that any controller can take over from another. A job is
closed in the run's own documents before it is deleted. A late submit, or a pod that an operator creates again, sees
that and ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.adapters.kube import KubeError, Missing
from airflow_elastic.adapters.kube.hub import Hub, Query, hub
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.engines.api import Capabilities, Finding, Job, Resized
from airflow_elastic.engines.kube.capacity.measures import Measures
from airflow_elastic.engines.kube.checks import check_spec, doctor, storage_problem
from airflow_elastic.engines.kube.create import create, objects, write_down
from airflow_elastic.engines.kube.kind import (
    Child,
    Kind,
    Object,
    by_worker,
    deleted,
    lacks_pods,
    pods_to_explain,
    read_job,
)
from airflow_elastic.engines.kube.options import KubeOptions, options_of
from airflow_elastic.engines.kube.output import Where, keep_output
from airflow_elastic.engines.kube.ownership import end_found, is_ours
from airflow_elastic.engines.kube.queues import kueue
from airflow_elastic.engines.kube.queues.volcano_events import EventReasons
from airflow_elastic.engines.kube.render.pod import JOB_LABEL, MARGIN_SECONDS
from airflow_elastic.engines.kube.resize import Workers, resize
from airflow_elastic.engines.kube.scale_steps import JobPods, Steps
from airflow_elastic.engines.kube.watch import pod_status
from airflow_elastic.engines.kube.watch.api_errors import refusal, trouble, with_ticks
from airflow_elastic.engines.kube.watch.ends import Ends
from airflow_elastic.engines.kube.watch.events import PodEvents
from airflow_elastic.engines.kube.watch.sidecars import held_by_sidecars
from airflow_elastic.engines.kube.worker_places import Shown, of_all, regroup
from airflow_elastic.spec.errors import EngineError, SubmitRefused
from airflow_elastic.spec.status import JobStatus, WorkerPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from airflow_elastic.adapters.kube import Access, Resource
    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.run import RunSpec

log = logging.getLogger(__name__)


class KubeEngine(Measures):
    """An engine over one kind of job. Subclasses only name the kind.

    Args:
        access: how to reach the cluster, if `engine_options` name no kubeconfig.
        open_store: opens run URIs, if that takes credentials that the environment does not hold.
    """

    kind: ClassVar[Kind]
    #: The object that an operator makes between the owner and the pods, if this holds the number of workers.
    child: ClassVar[Child | None] = None
    #: Whether a scale step waits for all pods, staying and leaving ones, whatever their numbers.
    awaits_all: ClassVar[bool] = False

    def __init__(
        self, *, access: Access | None = None, open_store: Callable[[str], Store] = open_store
    ) -> None:
        self._access, self._open_store = access, open_store
        self._steps, self._changes = Steps(), 0

    @property
    def name(self) -> str:
        """The name of the kind."""
        return self.kind.name

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the kind; agents outlive their ranks in pods of every kind."""
        return Capabilities(self.kind.scales_in_place, regroup=True, rejoin=True, resize=True, exclude=True)

    def check(self, spec: RunSpec) -> None:
        """Refuse bad options, and everything that the kind cannot carry out."""
        check_spec(self.kind, spec)

    def storage_problem(self, job: Job) -> str | None:
        """A folder that is not mounted into pods is not seen by workers."""
        return storage_problem(self.kind, job, options_of(job.spec, self.kind.options))

    def render(self, job: Job) -> dict[str, Any]:
        """All objects, as a List that `kubectl apply` takes."""
        items = [body for _, body in objects(self.kind, job, options_of(job.spec, self.kind.options))]
        return {"apiVersion": "v1", "kind": "List", "items": items}

    def doctor(self, namespace: str | None = None) -> list[Finding]:
        """Whether the cluster can be reached, knows the kind, and grants the rights."""
        return doctor(self.kind, self._access, namespace)

    # -- submit --------------------------------------------------------------------------------------------------

    async def submit(self, job: Job) -> None:
        """Write the job's record, then create its objects. The first caller creates them; all others adopt them."""
        options = options_of(job.spec, self.kind.options)
        files = await asyncio.to_thread(self._write_down, job, options)
        async with hub(self._reach(options)) as shared:
            if options.by_kueue and not await shared.client.knows(kueue.WORKLOADS):
                raise SubmitRefused(
                    f"{shared.client.server} has no {kueue.WORKLOADS.full_name}: install {kueue.WORKLOADS.needs} "
                    f"to use engine_options.queue ({options.queue}), or set queueing",
                    for_now=True,
                )
            try:
                await self._create(shared, job, options)
            except KubeError as error:
                raise refusal(error) from error
            # Another controller may have deleted the job before the objects existed: then only this one can remove
            # them.
            files.look_anew()
            if await asyncio.to_thread(lambda: files.closed):
                await self._remove(shared, job, options, grace_seconds=0)
                raise EngineError(f"job {job.name} has been deleted: it is not started again")

    def _write_down(self, job: Job, options: KubeOptions) -> JobObjects:
        if (why := self.storage_problem(job)) is not None:
            raise SubmitRefused(why)
        files = self._files(job)
        write_down(files, job, options.python, self._standby_from_the_start(job, options))
        return files

    async def _objects(
        self, shared: Hub, job: Job, options: KubeOptions
    ) -> list[tuple[Resource, dict[str, Any]]]:
        """The objects of a job to create, in this order, in the form that this cluster accepts."""
        return objects(self.kind, job, options)

    async def _create(self, shared: Hub, job: Job, options: KubeOptions) -> None:
        await create(shared, self.kind, job, options, await self._objects(shared, job, options))

    # -- watch ---------------------------------------------------------------------------------------------------

    async def watch(self, job: Job) -> AsyncIterator[JobStatus]:
        """Snapshots out of the shared watch."""
        options = options_of(job.spec, self.kind.options)
        seen = await asyncio.to_thread(self._begun, job)
        shown = Shown(partial(self._files, job), stands_by=job.spec.workers.standby > 0)
        last: JobStatus | None = None
        why: str | None = None
        lacking, ends = asyncio.Event(), Ends()
        async with hub(self._reach(options)) as shared:
            follow = shared.follow(job.name, *self._queries(options))
            events = EventReasons(shared.client, options.namespace, job.name)
            quiet = PodEvents(shared.client, options.namespace)
            async for (owners, found, *others), again in with_ticks(follow, lacking):
                owner = owners[0] if owners else await self._look(shared, job, options)
                workloads = others.pop() if options.by_kueue else ()
                if owners and others:
                    owner = {**owners[0], "child": others[0][0] if others[0] else None}
                why = await trouble(shared.client, options.namespace, self._names(job)) if again else why
                pods = self._steps.of_workers(job.name, found, seen)
                if owner is None:
                    status = deleted(job.name)
                else:
                    queue = kueue.why_held(workloads, owner)
                    status = read_job(self.kind, owner, pods, seen, self._before_workers(pods) or why, queue)
                    status = ends(status, by_worker(self.kind, pods))
                    grows = self._may_replace(job, options, owner)
                    if grows or job.spec.workers.standby:
                        status = await shown(status, self._changes, grows=grows)
                    if options.queueing == "volcano":
                        status = await events(status, seen)
                unclear = pods_to_explain(self.kind, pods, status)
                (lacking.set if unclear or lacks_pods(status) or events.waited_for else lacking.clear)()
                status = await quiet(status, unclear, ask=again)
                if status != last:
                    last = status
                    yield status
                phases = {worker.phase for worker in status.workers}
                if not phases & {WorkerPhase.PENDING, WorkerPhase.RUNNING}:
                    return

    def _begun(self, job: Job) -> dict[int, str]:
        """Workers whose pods have existed, by uid, if the owner says nothing about pods that are gone."""
        return {}

    def _may_replace(self, job: Job, options: KubeOptions, owner: Object) -> bool:
        """Whether further workers can take the places of lost ones."""
        return False

    def _standby_from_the_start(self, job: Job, options: KubeOptions) -> int:
        """How many standby workers a job has from the start."""
        return 0

    async def _ready(self, shared: Hub, job: Job, options: KubeOptions) -> tuple[int, ...]:
        """The standby workers that run."""
        return ()

    def _before_workers(self, pods: Sequence[Object]) -> str | None:
        """What a pod waits for that makes the pods of the workers, if there is one."""
        return None

    async def _look(self, shared: Hub, job: Job, options: KubeOptions) -> dict[str, Any] | None:
        """The owner, if the watch does not show it: it may be newer than the watch's newest message."""
        try:
            owner = await shared.client.get(self.kind.resource, options.namespace, job.name)
            return await self._read(shared, job, options, owner)
        except Missing:
            return None

    async def _read(
        self, shared: Hub, job: Job, options: KubeOptions, owner: dict[str, Any]
    ) -> dict[str, Any]:
        """The slim owner, with its child if there is one."""
        slim = self.kind.slim(owner)
        if self.child is None:
            return slim
        kind, name = self.child.kind, self.child.name(job)
        try:
            child = kind.slim(await shared.client.get(kind.resource, options.namespace, name))
        except Missing:
            child = None
        return {**slim, "child": child}

    # -- scale and delete ----------------------------------------------------------------------------------------

    async def scale(self, job: Job, workers: int) -> None:
        """Wait for the last step of the cluster; then begin a new generation, and change the job at its end."""
        options = options_of(job.spec, self.kind.options)
        kueue.refuse_change(self.kind.resource, options, job.name, below=self.child is not None)
        kind = self.kind if self.child is None else self.child.kind
        name = job.name if self.child is None else self.child.name(job)
        async with hub(self._reach(options)) as shared:
            pods, grace = partial(self._pods, shared, job, options), job.spec.health.grace_seconds
            where = shared.client, options.namespace, kind, name
            place = JobPods(*where, pods, self.kind.index, grace, self.awaits_all)
            ready = await self._ready(shared, job, options)
            await self._steps.change(place, self._files(job), job.name, workers, ready)
            self._changes += 1

    async def resize(self, job: Job, resources: Mapping[str, str]) -> tuple[Resized, ...]:
        """Changes the pods directly: their owners are not involved, and do not undo it."""
        options = options_of(job.spec, self.kind.options)
        async with hub(self._reach(options)) as shared:
            return await resize(Workers(shared.client, options.namespace, self.kind), job.name, resources)

    async def regroup(self, job: Job, members: tuple[int, ...]) -> None:
        """Begin a new generation of these workers; the others join a later one."""
        await asyncio.to_thread(regroup, self._files(job), job.name, lambda now: of_all(now, members))

    async def rejoin(self, job: Job, attempt: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Begin a generation of the same workers for this attempt: this engine does not replace lost workers."""
        return await asyncio.to_thread(self._files(job).rejoin, attempt)

    async def delete(self, job: Job, grace_seconds: float) -> None:
        """Close the job, then remove it.

        A job that has succeeded stays, unless cleanup is All. If a sidecar runs on in its pods, it is removed too: the
        sidecar would keep their GPUs, and the job would never be complete.
        """
        options = options_of(job.spec, self.kind.options)
        files = self._files(job)
        await asyncio.to_thread(files.create, "closed", {})
        try:
            async with hub(self._reach(options)) as shared:
                await self._remove(shared, job, options, grace_seconds)
        except EngineError:
            if await asyncio.to_thread(lambda: files.record) is not None:
                raise  # without a record no object was made, whether or not there is a cluster

    async def _remove(self, shared: Hub, job: Job, options: KubeOptions, grace_seconds: float) -> None:
        owner, pods = await asyncio.gather(
            self._owner(shared, job, options), self._pods(shared, job, options)
        )
        if owner is not None and not is_ours(owner, job):
            # Remove the pods below it too, even with wrong labels: their operator would make them again forever.
            await self._end(shared, job, options, None)
            return
        keep = owner is not None and job.spec.cleanup != "All"
        if owner is not None and keep and await self._has_succeeded(shared, job, options, owner, pods):
            if not (held := held_by_sidecars(pods, self.kind.container)):
                await self._keep_logs(shared, job, options, pods)
                return
            log.info("%s is removed: other containers run on in its pods (%s)", job.name, ", ".join(held))
        seconds = math.ceil(max(0.0, grace_seconds))
        await self._end_all(shared, job, options, owner, pods, seconds)
        if seconds > 0:
            try:
                async with asyncio.timeout(seconds + MARGIN_SECONDS):
                    await self._nothing_left(shared, job, options)
                    return
            except TimeoutError:
                pass  # on a node that does not answer, or it survives SIGKILL
            await self._delete_pods(shared, job, options, 0)
        await self._nothing_left(shared, job, options)

    async def _owner(self, shared: Hub, job: Job, options: KubeOptions) -> dict[str, Any] | None:
        try:
            return await shared.client.get(self.kind.resource, options.namespace, job.name)
        except Missing:
            return None

    async def _end_all(
        self,
        shared: Hub,
        job: Job,
        options: KubeOptions,
        owner: dict[str, Any] | None,
        pods: list[dict[str, Any]],
        seconds: int,
    ) -> None:
        """Keep the evidence of the job, then end it and its pods, so that no new pods replace them."""
        await self._keep_logs(shared, job, options, pods)
        await self._end(shared, job, options, owner)
        await self._delete_pods(shared, job, options, seconds)

    async def _delete_pods(self, shared: Hub, job: Job, options: KubeOptions, seconds: int) -> None:
        """Without grace a pod's object is removed without its node, which may be cut off and never answer.

        A process that still runs there cannot write into a later attempt: the fence prevents it.
        """
        selector = f"{self.kind.pod_label}={job.name}"
        await shared.client.delete_all(PODS, options.namespace, labels=selector, grace_seconds=seconds)

    async def _end(self, shared: Hub, job: Job, options: KubeOptions, owner: dict[str, Any] | None) -> None:
        """Prevent new pods: delete the owner (None if it is gone) and the objects made before it."""
        made = itertools.takewhile(
            lambda made: made[0] != self.kind.resource, objects(self.kind, job, options)
        )
        ends = [end_found(shared.client, options.namespace, job, resource) for resource, _ in made]
        if owner is not None:
            uid, resource = owner["metadata"]["uid"], self.kind.resource
            ends.append(shared.client.delete(resource, options.namespace, job.name, uid=uid))
        await asyncio.gather(*ends)

    async def let_go(self, shared: Hub, namespace: str, name: str) -> None:
        """Make other holders of a job's pods release them, before the job ends. No kind has any by default."""

    async def _keep_logs(
        self, shared: Hub, job: Job, options: KubeOptions, pods: list[dict[str, Any]]
    ) -> None:
        where = Where(shared.client, options.namespace, self.kind.container)
        await keep_output(where, lambda: self._open_store(job.run_uri), job, pods)

    async def _pods(self, shared: Hub, job: Job, options: KubeOptions) -> list[dict[str, Any]]:
        selector = f"{self.kind.pod_label}={job.name}"
        pods, _ = await shared.client.list(PODS, options.namespace, labels=selector)
        return [pod_status.slim(pod) for pod in pods]

    async def _has_succeeded(
        self, shared: Hub, job: Job, options: KubeOptions, owner: dict[str, Any], pods: list[dict[str, Any]]
    ) -> bool:
        status = read_job(self.kind, await self._read(shared, job, options, owner), pods, {})
        if job.spec.workers.standby:  # those may still run
            status = await Shown(partial(self._files, job), stands_by=True)(status, 0, grows=False)
        return status.succeeded

    async def _nothing_left(self, shared: Hub, job: Job, options: KubeOptions) -> None:
        pods_query = self._queries(options)[1]
        async for (pods,) in shared.follow(job.name, pods_query):
            # Only a finalizer keeps a pod that ends without grace: its node kills it, if it can be reached.
            if all(pod["metadata"].get("deletionGracePeriodSeconds") == 0 for pod in pods):
                return

    async def close(self, job: Job) -> None:
        """Do nothing more: the cluster removes what `delete` has left after `ttl_seconds`."""

    def _reach(self, options: KubeOptions) -> Access:
        named = options.kubeconfig is not None or options.context is not None
        return options.access if named or self._access is None else self._access

    def _files(self, job: Job) -> JobObjects:
        return JobObjects(self._open_store(job.run_uri), job.name, Path("."))

    def _names(self, job: Job) -> tuple[str, ...]:
        """The objects whose events can say why there are no pods."""
        return (job.name,) if self.child is None else (job.name, self.child.name(job))

    def _queries(self, options: KubeOptions) -> tuple[Query, ...]:
        kind, namespace = self.kind, options.namespace
        child = self.child and self.child.kind
        return (
            Query(kind.resource, namespace, JOB_LABEL, JOB_LABEL, kind.slim),
            Query(PODS, namespace, kind.pod_label, kind.pod_label, pod_status.slim),
            *([] if child is None else [Query(child.resource, namespace, JOB_LABEL, JOB_LABEL, child.slim)]),
            *([self._workloads(options)] if options.by_kueue else []),
        )

    def _workloads(self, options: KubeOptions) -> Query:
        return Query(kueue.WORKLOADS, options.namespace, "", "", kueue.slim)
