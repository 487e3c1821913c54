"""Runs as a controller leaves them, and the real server of `airflow-elastic ui` over them, asked as a browser does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from starlette.testclient import TestClient

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.reports import write_progress, write_status
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.control.runs import Run
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.models.start import Origin
from airflow_elastic.spec.status import Progress, RankReport, Stretch
from airflow_elastic.views.all_runs.below import id_of
from airflow_elastic.web.standalone.runs import RunsBelow
from airflow_elastic.web.standalone.server import application
from tests.support.builders import spec

TOKEN, PORT = "a-secret-of-tests", 8750
BASE = f"http://127.0.0.1:{PORT}"


def write_run(
    folder: Path,
    *events: ev.Event,
    progress: Progress | None = None,
    origin: Origin | None = None,
    **changes: Any,
) -> Store:
    """A run of 2 workers whose journal has these events after its beginning, which was a minute ago."""
    store = open_store(str(folder))
    begun = time.time() - 60.0
    journal = Journal(store)
    every: Sequence[ev.Event] = (
        ev.RunCreated(begun, spec(**changes), scales_in_place=True, origin=origin),
        *events,
    )
    for seq, event in enumerate(every):
        assert journal.append(seq, event)
    if progress is not None:
        write_progress(store, progress)
    publish(store)
    return store


def publish(store: Store) -> None:
    """Write the status document, as a controller does."""
    write_status(store, Run(store).status())


def trained(step: int = 100, *, attempt: int = 1, total: int | None = 1000, **changes: Any) -> Progress:
    """A report of two ranks that are at a step now, and made one in 0.1 s."""
    now = time.time()
    ranks = tuple(RankReport(number, f"node-{number}", step, now, step_seconds=0.1) for number in range(2))
    stretch = Stretch(1, 2, 2, now - 20.0, now - 10.0, now, 0, step, 9.0, 1.0)
    defaults: dict[str, Any] = {"stretches": (stretch,), "ranks": ranks, "attached": True, "loss": 0.5}
    return Progress(attempt, now, step, now, total, world_size=2, **{**defaults, **changes})


def submitted(attempt: int = 1) -> ev.AttemptSubmitted:
    return ev.AttemptSubmitted(time.time() - 50.0, attempt, f"job-a{attempt}")


class Browser(TestClient):
    """Somebody with the token of a server over these runs; `signed_in` False: without it."""

    def __init__(self, root: Path | str, *, signed_in: bool = True, static: Path | None = None) -> None:
        self.host = RunsBelow(str(root))
        app = application(self.host, TOKEN, PORT, **({} if static is None else {"static": static}))
        super().__init__(app, base_url=BASE, follow_redirects=False)
        if signed_in:
            self.headers["Authorization"] = f"Bearer {TOKEN}"

    def of(self, key: str, what: str = "", **query: Any) -> httpx.Response:
        """What a route says of the run at a key below the root."""
        return self.get(f"/api/run/{id_of(key)}{what}", params=query)

    def ask(self, key: str, action: str, document: Any = None, **headers: str) -> httpx.Response:
        """Ask for an action as the page does."""
        return self.post(
            f"/api/run/{id_of(key)}/actions/{action}",
            json={} if document is None else document,
            headers={"X-Elastic-Request": "1", **headers},
        )
