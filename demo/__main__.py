"""`python -m demo`: what `make demo` runs.

It starts an Airflow of its own in `.demo/`, and runs the DAG `digits_quickstart` there. It kills one of its workers,
asks for one more, and shows how training goes on. It exits 0 only if all of that really happened. With KEEP=1 in the
environment it leaves Airflow running; `python -m demo stop` ends it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from airflow_elastic.spec.errors import ElasticError
from airflow_elastic.testing.airflow_rest import AirflowError
from demo import play
from demo.place import CHECKOUT, Place
from demo.screen import Screen


def main() -> int:
    """The demo; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "command", nargs="?", choices=["stop"], help="end the Airflow that KEEP=1 has left running"
    )
    parser.add_argument("--folder", type=Path, default=CHECKOUT / ".demo", help="the folder of the demo")
    options = parser.parse_args()
    place, screen = Place(options.folder.absolute()), Screen()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        place.take()
        if killed := place.end_all():
            screen.say(f"ended {killed} processes that an earlier demo had left running")
        if options.command == "stop":
            return 0
        place.empty()
        return play.play(place, screen, keep=os.environ.get("KEEP", "") not in {"", "0"})
    except KeyboardInterrupt:
        screen.say("interrupted; nothing is left running", style="bold red")
        return 130
    except ElasticError as error:
        screen.say(str(error), style="bold red")
        if isinstance(error, AirflowError):
            screen.say(f"Airflow's own files, its log among them, are in {place.home}")
        return 1


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
