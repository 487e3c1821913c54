"""Runs a training script as one rank; `start_rank.py` is what is started.

All it adds is evidence: SIGUSR1 prints the stacks of all threads, and an exception that ends the script is kept, so
that the first failing rank's traceback can be shown on the task. The script need not know. Imports nothing heavy: each
restart waits for it.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.processes import be_called
from airflow_elastic.runtime.rank import main_module
from airflow_elastic.runtime.rank.error_file import ErrorFile

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def main(arguments: list[str], loaded: Collection[str], path: Sequence[str]) -> None:
    """Run the script, module or program that the arguments name; with --stand-by, when told which.

    Args:
        arguments: our own.
        loaded: see `main_module.run`.
        path: likewise.
    """
    if arguments[:1] == ["--stand-by"]:
        from airflow_elastic.runtime.agent.spares import stand_by

        arguments = stand_by()
    be_called(f"rank-{os.environ.get('RANK', '?')}")
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    started = str(getattr(sys.modules["__main__"], "__file__", ""))
    starters = runpy._run_module_as_main.__code__.co_filename  # type: ignore[attr-defined]
    last = ErrorFile({started, __file__, main_module.__file__, starters})
    if not main_module.is_python(command[0]):
        _become(command, last)
    elif command[0] != "-m" and not os.path.exists(command[0]):
        _refuse(command[0], "no such file", last)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    try:
        main_module.run(command, loaded, path)
    except BaseException as error:
        last.keep(error)
        raise


def _become(command: list[str], last: ErrorFile) -> None:
    """Go over to a user's own program. Python below it is to print at once, as ranks do."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        os.execvp(command[0], command)  # noqa: S606 - as it stands
    except FileNotFoundError:
        _refuse(command[0], "no such file", last)
    except OSError as error:
        _refuse(command[0], "not executable" if isinstance(error, PermissionError) else str(error), last)


def _refuse(command: str, why: str, last: ErrorFile) -> None:
    text = f"{command}: {why} (looked for from {os.getcwd()}): name a script that exists on the worker"
    last.write(text)
    sys.stderr.write(text + "\n")
    sys.exit(127 if why == "no such file" else 126)
