"""What a controller tells: subclass and override what is of interest. Nothing here can change the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import JobStatus, Progress


class Observer:
    """Hears everything, says nothing."""

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        """An event was journaled, by this controller or by another one; also called for those of the past."""

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        """The workers have reported something new."""

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        """The controller has looked around: a good moment to fetch output."""

    def on_waiting(self, state: RunState, job: JobStatus) -> None:
        """What workers of the attempt wait for is another than before, or nothing any more: see `JobStatus.wait`.

        A mere change of the engine's words, or of how many wait, is told at most once a minute. It is the engine's
        word of the moment and stands in no journal: each controller that takes the run over tells it anew.
        """

    def on_lagging(self, state: RunState, progress: Progress, ranks: frozenset[int]) -> None:
        """These ranks have held all others up for a while; empty: none does any more. It stands in no journal."""

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        """Storage or engine are out of reach, for the `times`-th time in a row; the next try is in `pause` seconds."""
