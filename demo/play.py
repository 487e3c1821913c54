"""The demo from its start to its end."""

from __future__ import annotations

import atexit
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.host import processes
from airflow_elastic.engines.local.host import RUN_MARK
from airflow_elastic.testing.airflow_rest import AirflowError
from airflow_elastic.testing.standalone import Standalone
from demo import page, table
from demo.faults import Faults
from demo.place import DAGS
from demo.verify import Evidence, checks
from demo.watch import Watch

if TYPE_CHECKING:
    from demo.place import Place
    from demo.screen import Screen

DAG_ID = "digits_quickstart"
CONF = {"epochs": 30, "step_seconds": 0.06}
PATIENCE_SECONDS = 900.0


def play(place: Place, screen: Screen, *, keep: bool) -> int:
    """Run the demo; returns its exit code.

    Args:
        place: the demo's folder, empty.
        screen: shows the progress.
        keep: leave Airflow running.
    """
    airflow = Standalone(place.home, DAGS, stop_timeout=5, progress=screen.say)
    with _ended(airflow, screen):
        airflow.start()
        airflow.wait_for_dag(DAG_ID)
        screen.say(
            f"triggering {DAG_ID}: a network learns digits on 2 workers. One of them will be killed, and a third one "
            "asked for; the script has no code for this."
        )
        run_id = airflow.trigger(DAG_ID, CONF, run_id="demo")
        faults = Faults(screen.say)
        watch = Watch(airflow, DAG_ID, run_id, screen, faults)
        try:
            with screen:
                if not watch.until_over(PATIENCE_SECONDS):
                    screen.say(f"the DAG run is not over after {PATIENCE_SECONDS:g} s", style="bold red")
        finally:
            faults.close()
        links = _links(airflow, run_id)
        evidence = _gather(airflow, run_id, watch, faults)
        screen.say("looking at the tab Training")
        evidence["page"] = page.look(
            airflow, (DAG_ID, run_id, "train"), links[1], place.folder / "training.png"
        )
        _tell_failures(airflow, run_id, watch, screen)
        if keep:
            atexit.unregister(airflow.stop)
        else:
            screen.say("the DAG run is over; stopping Airflow")
            place.living()  # knows them from now on
            airflow.stop()
            evidence["airflow_left"] = [process.pid for process in place.living()]
    seen = Evidence(**evidence)
    screen.console.print()
    table.show(screen.console, seen)
    found = checks(seen)
    table.show_checks(screen.console, found)
    screen.console.print()
    if keep:
        _invite(screen, airflow, links, watch)
    failed = [check for check in found if not check.ok]
    if failed:
        screen.say(
            f"{len(failed)} of {len(found)} checks failed; everything is in {place.folder}", style="bold red"
        )
        return 1
    screen.say(f"everything happened, in {screen.seconds:.0f} s", style="bold green")
    return 0


@contextmanager
def _ended(airflow: Standalone, screen: Screen) -> Iterator[None]:
    """Whatever goes wrong: end Airflow and the training, and let nothing interrupt that."""
    try:
        yield
    except BaseException as error:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if isinstance(error, KeyboardInterrupt):
            screen.say("interrupted: ending Airflow and the training", style="yellow")
        airflow.stop(detached=True)
        raise


def _gather(airflow: Standalone, run_id: str, watch: Watch, faults: Faults) -> dict[str, Any]:
    """What is known when the DAG run is over."""
    candidate = _xcom(airflow, run_id, "evaluate")
    events = airflow.rest("GET", "assets/events", params={"source_dag_id": DAG_ID, "source_run_id": run_id})
    uri = watch.run.store.uri if watch.run else None
    return {
        "status": watch.run.status() if watch.run else None,
        "tasks": watch.tasks,
        "tries": int(airflow.task(DAG_ID, run_id, "train")["try_number"]),
        "log": airflow.task_log(DAG_ID, run_id, "train") if watch.run else "",
        "killed": faults.killed,
        "scale_code": faults.scale_code,
        "expected_samples": _expected(_xcom(airflow, run_id, "prepare")),
        "evaluation": candidate,
        "promotion": _promotion(airflow, run_id),
        "asset_events": events["asset_events"],
        "training_left": _training_left(uri) if uri else [],
        "airflow_left": None,
    }


def _promotion(airflow: Standalone, run_id: str) -> dict[str, Any] | None:
    record = _xcom(airflow, run_id, "promote")
    return record and {**record, "file": f"{airflow.home}/digits/model/{record['weights']['key']}"}


def _xcom(airflow: Standalone, run_id: str, task_id: str) -> Any:
    try:
        return airflow.xcom(DAG_ID, run_id, task_id)
    except AirflowError:
        return None


def _expected(data: str | None) -> int | None:
    """Samples of the data set times epochs."""
    if data is None or not Path(data).exists():
        return None
    import numpy as np

    with np.load(data) as stored:
        return len(stored["labels"]) * int(CONF["epochs"])


def _training_left(uri: str, seconds: float = 5.0) -> list[int]:
    """Processes of the training; it has ended by itself, so there is nothing to wait for but the kernel."""
    deadline = time.monotonic() + seconds
    while living := processes.marked(RUN_MARK, f"{uri}/local"):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return [process.pid for process in living]


def _tell_failures(airflow: Standalone, run_id: str, watch: Watch, screen: Screen) -> None:
    for task, state in watch.tasks.items():
        if state == "failed":
            end = "\n".join(airflow.task_log(DAG_ID, run_id, task).splitlines()[-25:])
            screen.say(f"the task {task} failed; its log ends:\n{end}", style="red")


def _links(airflow: Standalone, run_id: str) -> tuple[str, str | None]:
    """The pages to look at: Airflow's own of the task, and that of its training."""
    task = f"{airflow.url}/dags/{DAG_ID}/runs/{run_id}/tasks/train"
    try:
        found = airflow.rest("GET", f"dags/{DAG_ID}/dagRuns/{run_id}/taskInstances/train/links")
    except AirflowError:  # train never began
        return task, None
    return task, found["extra_links"].get("Elastic run")


def _invite(screen: Screen, airflow: Standalone, links: tuple[str, str | None], watch: Watch) -> None:
    """What to look at, as Airflow is still there."""
    rows = {"Airflow": airflow.login_hint, "the task": links[0], "its training": links[1] or "did not begin"}
    if watch.run is not None:
        rows["in a shell"] = f".venv/bin/airflow-elastic events {shlex.quote(watch.run.store.uri)}"
    rows["to go on"] = f"trigger digits_retrain at {airflow.url}/dags: it starts from the promoted model"
    rows["to end it"] = "make demo ARGS=stop"
    for name, text in rows.items():
        screen.console.print(f"{name:14}{text}", soft_wrap=True)
    screen.console.print()
