"""What a controller tells: subclass and override what is of interest. Nothing here can change the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.errors import ElasticError
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.status import Progress


class Observer:
    """Hears everything, says nothing."""

    def on_event(self, event: Event, before: RunState | None, state: RunState) -> None:
        """An event was journaled, by this controller or by another one; also called for those of the past."""

    async def on_progress(self, state: RunState, progress: Progress) -> None:
        """The workers have reported something new."""

    async def on_look(self, state: RunState, progress: Progress | None) -> None:
        """The controller has looked around: a good moment to fetch output."""

    def on_trouble(self, error: ElasticError, times: int, pause: float) -> None:
        """Storage or engine are out of reach, for the `times`-th time in a row; the next try is in `pause` seconds."""
