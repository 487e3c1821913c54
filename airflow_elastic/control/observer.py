"""What a controller reports: subclass `Observer` and override what is of interest. Observers cannot change the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress


class Observer:
    """Receives everything and ignores it."""

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        """An event was journaled, by this controller or another one; also called for past events."""

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        """The workers have reported something new."""

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        """The controller has looked around: a good moment to fetch output."""

    def on_published(self, state: RunState, progress: Progress | None) -> None:
        """The status document was written: every few seconds as long as a controller is at work."""

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        """The workers of the attempt wait for something else than before, or for nothing any more: see
        `JobStatus.wait`.

        If only the engine's words have changed, or how many workers wait, this is called at most once a minute. The
        journal does not have it, so each controller that takes over the run reports it again.
        """

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        """These ranks have delayed all others for a while; empty: none does any more. The journal does not have it."""

    async def on_end(self, state: RunState) -> None:
        """The run has ended, and its last event is written. The controller waits for this."""

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        """Storage or engine are out of reach, for the `times`-th time in a row; the next try is in `pause` seconds."""


class Observers(Observer):
    """Several observers, called one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        for one in self._observers:
            one.on_event(event, before, state)

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        for one in self._observers:
            await one.on_progress(state, progress)

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        for one in self._observers:
            await one.on_look(state, progress)

    def on_published(self, state: RunState, progress: Progress | None) -> None:
        for one in self._observers:
            one.on_published(state, progress)

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        for one in self._observers:
            one.on_waiting(state, job)

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        for one in self._observers:
            one.on_lagging(state, progress, ranks)

    async def on_end(self, state: RunState) -> None:
        for one in self._observers:
            await one.on_end(state)

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        for one in self._observers:
            one.on_trouble(error, times, pause)
