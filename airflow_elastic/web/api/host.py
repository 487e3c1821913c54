"""What a host of the pages provides: which runs there are, who asks, and what that person may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fastapi import Request

    from airflow_elastic.views.all_runs.index import Index
    from airflow_elastic.views.cache import Reader


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that the person may read.

    Attributes:
        reader: reads it.
        path: by which the routes know it.
        user: who asks, as the record of the run shows it; None if nobody is known.
        edit: whether the person may steer it.
        links: addresses of pages about it, by what they show.
    """

    reader: Reader
    path: str
    user: str | None
    edit: bool
    links: Mapping[str, str] = field(default_factory=dict)


class Host(Protocol):
    """Airflow's API server, or the server of `airflow-elastic ui`. Its methods block."""

    @property
    def mode(self) -> str:
        """`airflow` or `standalone`."""
        ...

    @property
    def index(self) -> Index:
        """All runs that anybody may read."""
        ...

    @property
    def pattern(self) -> str:
        """The path of a run as a route of FastAPI, e.g. `/run/{id}`."""
        ...

    def roots(self) -> list[str]:
        """Folders and prefixes below which it may read runs."""
        ...

    def open(self, request: Request) -> Opened:
        """The run that the path of the request names. Permission to read it is checked before.

        Raises:
            HTTPException: there is none (404), or it may not be read (403).
            ElasticError: the storage does not answer.
        """
        ...

    def listed(self, request: Request) -> tuple[float, list[dict[str, Any]]]:
        """When the list was read, in epoch seconds, and the rows of all runs that the person may read."""
        ...

    def origins(self, request: Request) -> set[str]:
        """The origins of its own pages, e.g. `https://airflow.example.com`."""
        ...

    def audit(self, request: Request, opened: Opened, action: str, given: Mapping[str, Any]) -> None:
        """Record that the person asks for an action, before it is asked for."""
        ...
