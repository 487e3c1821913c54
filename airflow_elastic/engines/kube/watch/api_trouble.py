"""Why there is no job, or why it has no pods: the API server refuses them (rights, webhooks, a full quota)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_elastic.adapters.host.event_loop import end_task
from airflow_elastic.adapters.kube import KubeError, OverQuota
from airflow_elastic.adapters.kube.resources import EVENTS
from airflow_elastic.engines.kube.queues import native
from airflow_elastic.engines.kube.watch.events import when
from airflow_elastic.spec.errors import EngineError, SubmitHeld, SubmitRefused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from airflow_elastic.adapters.kube import Client

T = TypeVar("T")


def refusal(error: KubeError) -> EngineError:
    """What this answer means for a job that was to be made.

    What the API server refuses for good it refuses by rules of the cluster: by rights, webhooks, queues, kinds that are
    known. People change these, so that a job like others before it may be accepted again.
    """
    if isinstance(error, OverQuota):
        return SubmitHeld(str(error))
    said = "; ".join(filter(None, (str(error), native.unknown(str(error)))))
    return SubmitRefused(said, for_now=True) if error.is_final else error


#: An operator needs less than that from one object to the next, as a rule. What lasts is looked at less and less often.
LOOK_SECONDS, LONGEST_SECONDS = 2.0, 30.0


async def ticking(steps: AsyncIterator[T], still: asyncio.Event) -> AsyncGenerator[tuple[T, bool]]:
    """Each step with False; while `still` is set, the newest one again with True whenever none came for a while."""
    following: asyncio.Future[T] = asyncio.ensure_future(anext(steps))
    newest: T | None = None
    pause = LOOK_SECONDS
    try:
        while True:
            looks = newest is not None and still.is_set()
            done, _ = await asyncio.wait({following}, timeout=pause if looks else None)
            pause = LOOK_SECONDS if done else min(2 * pause, LONGEST_SECONDS)
            if done:
                try:
                    newest = following.result()
                except StopAsyncIteration:
                    return
                following = asyncio.ensure_future(anext(steps))
            if newest is not None:
                yield newest, not done
    finally:
        with contextlib.suppress(StopAsyncIteration, KubeError):
            await end_task(following)


async def trouble(client: Client, namespace: str, names: Iterable[str]) -> str | None:
    """The newest warning about objects of these names; None where there is none, or where we may not know."""
    events: list[dict[str, Any]] = []
    try:
        for name in names:
            fields = f"involvedObject.name={name},type=Warning"
            events += (await client.list(EVENTS, namespace, fields=fields))[0]
    except KubeError:
        return None
    if not events:
        return None
    newest = max(events, key=when)
    return f"{newest.get('reason', 'Warning')}: {newest.get('message', '')}".rstrip(": ")
