"""One scale step after the other: a cluster is done with the last one before the next one begins.

Numbers of workers come again, and so two pods of one number may be there: the one that was sent away, and saves, and
the one that is to come. Whoever asks a controller for the second while there is the first is told that the number has
failed (a Job with `backoffLimitPerIndex`, a PyTorchJob), and gets none. Nor is a worker taken back before its pod was
made: the controller, which hears of a change a moment later, would make it and delete it at once, and so let its number
fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.engines.kube.kind import asked
from airflow_elastic.engines.kube.places import meet_anew, sized
from airflow_elastic.engines.kube.pod import MARGIN_SECONDS
from airflow_elastic.spec.errors import EngineError

if TYPE_CHECKING:
    from airflow_elastic.adapters.jobfiles import JobFiles, Members
    from airflow_elastic.adapters.kube import Client
    from airflow_elastic.engines.kube.kind import Kind, Object

#: A controller makes a pod within this, if nothing is in its way.
_MADE_SECONDS = 5.0

#: What a controller hears of pods and what it hears of jobs are no more apart than that.
_HEARD_SECONDS = 0.3

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pods of a job are.

    Attributes:
        client: of the cluster.
        namespace: theirs.
        kind: of the object that holds the number of workers.
        name: of that object.
        pods: lists them, slim, as they are now.
        number: of a pod's worker.
        grace_seconds: what a worker that is sent away has to save.
        awaits_left: whether numbers come only when pods that had them have gone.
    """

    client: Client
    namespace: str
    kind: Kind
    name: str
    pods: Callable[[], Awaitable[Sequence[dict[str, Any]]]]
    number: Callable[[Object], int | None]
    grace_seconds: float
    awaits_left: bool = True


class Steps:
    """What was seen of the scale steps of an engine's jobs.

    Args:
        clock: seconds, monotonic.
        sleep: waits for so many of them.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._former: dict[str, dict[str, int]] = {}  # by job: of workers that were sent away, uid and number

    def of_workers(
        self, job: str, pods: Sequence[dict[str, Any]], seen: dict[int, str]
    ) -> list[dict[str, Any]]:
        """The pods without those of workers that were sent away, which are forgotten in `seen`, too.

        What a watch shows of a job, and what it shows of its pods, is not of the same moment.
        """
        former = self._former.get(job, {})
        for index in [index for index, uid in seen.items() if uid in former]:
            del seen[index]
        return [pod for pod in pods if pod["metadata"]["uid"] not in former]

    async def change(self, place: Place, files: JobFiles, job: str, workers: int) -> None:
        """Change a job to so many workers, once the cluster is done with the step before.

        Raises:
            EngineError: there is no such job, or what is left of former workers does not go.
        """
        members = await asyncio.to_thread(files.newest_members)
        going = {} if members is None else await self._settle(place, job, members, workers)
        files.look_anew()
        found = await place.client.get(place.kind.resource, place.namespace, place.name)
        size = await asyncio.to_thread(meet_anew, files, job, lambda now: sized(now, workers))
        slim = place.kind.slim(found)
        if place.kind.workers(slim) != size or asked(slim, size) is not None:
            body, part = place.kind.scaled(found, size)
            await place.client.patch(place.kind.resource, place.namespace, place.name, body, part)
        self._former.setdefault(job, {}).update(going)

    async def _settle(self, place: Place, job: str, members: Members, workers: int) -> dict[str, int]:
        """Wait until that can be done; then the pods of those that will go, by uid, with their number."""
        now, then = set(members.all), set(sized(members, workers)[0])
        goes, comes = now - then, then - now if place.awaits_left else set()
        found = await self._settled(place, goes, comes) if goes | comes else {}
        if comes & {*self._former.get(job, {}).values()}:
            await self._sleep(_HEARD_SECONDS)
        return {uid: index for uid, index in found.items() if index in goes}

    async def _settled(self, place: Place, goes: Collection[int], comes: Collection[int]) -> dict[str, int]:
        """Wait until those that go have had pods, and those that come have none; then all pods' numbers, by uid."""
        owner = await place.client.get(place.kind.resource, place.namespace, place.name)
        is_held = place.kind.held(place.kind.slim(owner)) is not None
        began, patience = self._clock(), place.grace_seconds + 2 * MARGIN_SECONDS
        while True:
            pods = await place.pods()
            numbers = {
                pod["metadata"]["uid"]: index for pod in pods if (index := place.number(pod)) is not None
            }
            left = [pod for pod in pods if numbers.get(pod["metadata"]["uid"]) in comes]
            waited = self._clock() - began
            unmade = not is_held and waited < _MADE_SECONDS and not set(goes) <= {*numbers.values()}
            if not left and not unmade:
                return numbers
            if waited > patience + 2 * MARGIN_SECONDS:
                names = ", ".join(pod["metadata"]["name"] for pod in left)
                raise EngineError(
                    f"{place.name} cannot be scaled: pods of workers that have left do not go ({names})"
                )
            for pod in left:
                # The one has ended by itself, before it was deleted, and stays; the other's node does not answer.
                ended = (
                    pod["status"]["phase"] in ("Succeeded", "Failed")
                    and "deletionTimestamp" not in pod["metadata"]
                )
                if ended or waited > patience:
                    name = f"metadata.name={pod['metadata']['name']}"
                    await place.client.delete_all(PODS, place.namespace, fields=name, grace_seconds=0)
            await self._sleep(_LOOK_SECONDS)
