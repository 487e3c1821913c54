"""Why there is no job, or no pods for it: the API server refuses them, by rights, webhooks or a full quota."""

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
    """The meaning of this answer to the creation of a job.

    The API server's final refusals follow from rules of the cluster: rights, webhooks, queues, known kinds. People
    change these, so a job like earlier ones may be accepted again.
    """
    if isinstance(error, OverQuota):
        return SubmitHeld(str(error))
    said = "; ".join(filter(None, (str(error), native.unknown(str(error)))))
    return SubmitRefused(said, for_now=True) if error.is_final else error


#: An operator usually needs less time from one object to the next. Lasting errors are looked at less and less often.
LOOK_SECONDS, LONGEST_SECONDS = 2.0, 30.0


async def with_ticks(steps: AsyncIterator[T], still: asyncio.Event) -> AsyncGenerator[tuple[T, bool]]:
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
    """The newest warning about objects with these names; None if there is none, or without the right to read events."""
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
