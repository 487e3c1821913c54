"""One scale step after the other: the cluster finishes one before the next one begins.

Numbers of workers are used again, so two pods with one number may exist: the old one, which is saving, and the new one.
If the new one is requested too early, a Job (with `backoffLimitPerIndex`) or a PyTorchJob counts the number as failed,
and does not create it. A worker is also not sent away before its pod exists. The controller sees each change a moment
later. It would create the pod and delete it at once, and the number would fail.

In a PyTorchJob any pod that ends, or is ending, is a failure of the whole job, if fewer pods run than it should have.
So workers are sent away when the remaining ones run, and new ones come when all old ones are gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.kube.kind import asked
from airflow_elastic.engines.kube.render.pod import MARGIN_SECONDS
from airflow_elastic.engines.kube.worker_places import Group, regroup, sized
from airflow_elastic.spec.errors import EngineError

if TYPE_CHECKING:
    from airflow_elastic.adapters.kube import Client
    from airflow_elastic.adapters.records.job_files import JobFiles, Members, Standby
    from airflow_elastic.engines.kube.kind import Kind, Object

#: A controller creates a pod within this time, in seconds, if nothing prevents it.
_MADE_SECONDS = 5.0

#: The largest delay between a controller's views of pods and of jobs, in seconds.
_HEARD_SECONDS = 0.3

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class JobPods:
    """The pods of a job, and how to list them.

    Attributes:
        client: of the cluster.
        namespace: of the pods.
        kind: of the object that holds the number of workers.
        name: of that object.
        pods: lists them, slim, as they are now.
        number: of a pod's worker.
        grace_seconds: the time to save for a worker that is sent away.
        awaits_all: whether a step waits for all pods, and not only for those with the numbers that come.
    """

    client: Client
    namespace: str
    kind: Kind
    name: str
    pods: Callable[[], Awaitable[Sequence[dict[str, Any]]]]
    number: Callable[[Object], int | None]
    grace_seconds: float
    awaits_all: bool = False


@dataclass(frozen=True, slots=True)
class _Waits:
    """What a step waits for.

    Attributes:
        goes: workers that must have pods.
        stays: workers whose pods must run.
        comes: workers that must not have pods yet.
        beyond: if not None, no worker with this number or a higher one may have a pod yet.
        is_held: whether the job is suspended, and has no pods.
    """

    goes: set[int]
    stays: set[int]
    comes: set[int]
    beyond: int | None
    is_held: bool

    def has_left(self, index: int) -> bool:
        """Whether the pod of this worker must be gone."""
        return index in self.comes or (self.beyond is not None and index >= self.beyond)

    def are_on_their_way(self, pods: Mapping[int, dict[str, Any]], waited: float, patience: float) -> bool:
        """Whether to wait for pods that must be created, or must run: pods without a node may find no room."""
        if self.is_held:
            return False
        if waited < _MADE_SECONDS and not self.goes <= pods.keys():
            return True
        found = [pods.get(index) for index in self.stays]
        pending = [pod for pod in found if pod is None or pod["status"]["phase"] == "Pending"]
        on_nodes = [pod for pod in pending if pod is not None and pod["spec"]["nodeName"] is not None]
        return waited < (patience if on_nodes else _MADE_SECONDS if pending else 0.0)


class Steps:
    """The observations about the scale steps of an engine's jobs.

    Args:
        clock: seconds, monotonic.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._former: dict[
            str, dict[str, int]
        ] = {}  # by job: the uids and numbers of workers that were sent away

    def of_workers(
        self, job: str, pods: Sequence[dict[str, Any]], seen: dict[int, str]
    ) -> list[dict[str, Any]]:
        """The pods without those of workers that were sent away; these are removed from `seen`, too.

        A watch's views of a job and of its pods are from different moments.
        """
        former = self._former.get(job, {})
        for index in [index for index, uid in seen.items() if uid in former]:
            del seen[index]
        return [pod for pod in pods if pod["metadata"]["uid"] not in former]

    async def change(
        self, place: JobPods, files: JobFiles, job: str, workers: int, ready: Collection[int] = ()
    ) -> None:
        """Change a job to so many workers, once the cluster has finished the last step.

        Args:
            place: the pods.
            files: the job's documents.
            job: name of the job.
            workers: how many.
            ready: standby workers, which join first.

        Raises:
            EngineError: there is no such job, or pods of former workers do not end.
        """
        members, standby = await asyncio.to_thread(lambda: (files.newest_members(), files.standby()))
        wanted = partial(sized, workers=workers, ready=ready, lost=standby.lost)
        going = {} if members is None else await self._settle(place, job, members, wanted, standby)
        files.look_anew()
        found = await place.client.get(place.kind.resource, place.namespace, place.name)
        size = await asyncio.to_thread(regroup, files, job, wanted)
        slim = place.kind.slim(found)
        if place.kind.workers(slim) != size or asked(slim, size) is not None:
            body, part = place.kind.scaled(found, size)
            await place.client.patch(place.kind.resource, place.namespace, place.name, body, part)
        self._former.setdefault(job, {}).update(going)

    async def _settle(
        self,
        place: JobPods,
        job: str,
        members: Members,
        wanted: Callable[[Members], Group],
        standby: Standby,
    ) -> dict[str, int]:
        """Wait until the step can begin; returns the uids and numbers of the pods that will leave."""
        now, then = set(members.all), set(wanted(members)[0])
        if now == then:
            return {}
        owner = place.kind.slim(await place.client.get(place.kind.resource, place.namespace, place.name))
        grows = len(then) > len(now)
        waits = _Waits(
            goes=now - then,
            stays=now & then if place.awaits_all and not grows else set(),
            comes=set() if place.awaits_all else then - now - set(standby.nodes),
            # By the job itself, which others may have scaled: their pods exist, and are not old ones.
            beyond=place.kind.workers(owner) if place.awaits_all and grows else None,
            is_held=place.kind.held(owner) is not None,
        )
        again = any(waits.has_left(index) for index in self._former.get(job, {}).values())
        found = await self._settled(place, job, waits, again=again)
        return {uid: index for uid, index in found.items() if index in waits.goes}

    async def _settled(self, place: JobPods, job: str, waits: _Waits, *, again: bool) -> dict[str, int]:
        """Wait until the pods are as required; returns the uids and numbers of all pods.

        Pods that must be gone are those of former workers. An operator may have made some of them again meanwhile.

        Args:
            place: the pods.
            job: name of the job.
            waits: what to wait for.
            again: whether to look again a moment later, because the controller may not know yet that pods are gone.
        """
        began, patience = self._clock(), place.grace_seconds + 2 * MARGIN_SECONDS
        seen_free = False
        while True:
            pods = await place.pods()
            numbers = {
                pod["metadata"]["uid"]: index for pod in pods if (index := place.number(pod)) is not None
            }
            former = {uid: index for uid, index in numbers.items() if waits.has_left(index)}
            left = [pod for pod in pods if pod["metadata"]["uid"] in former]
            self._former.setdefault(job, {}).update(former)
            waited = self._clock() - began
            by_index = {numbers[uid]: pod for pod in pods if (uid := pod["metadata"]["uid"]) in numbers}
            again = again or bool(left)
            free = not left and not waits.are_on_their_way(by_index, waited, patience)
            if free and (seen_free or not again):
                return numbers
            if left and waited > patience + 2 * MARGIN_SECONDS:
                names = ", ".join(pod["metadata"]["name"] for pod in left)
                raise EngineError(
                    f"{place.name} cannot be scaled: pods of workers that have left do not go ({names})"
                )
            for pod in left:
                # One pod ended by itself before it was deleted, and stays; the node of another one does not answer.
                ended = (
                    pod["status"]["phase"] in ("Succeeded", "Failed")
                    and "deletionTimestamp" not in pod["metadata"]
                )
                if ended or waited > patience:
                    name = f"metadata.name={pod['metadata']['name']}"
                    await place.client.delete_all(PODS, place.namespace, fields=name, grace_seconds=0)
            seen_free = free
            await self._sleep(_HEARD_SECONDS if free else _LOOK_SECONDS)
