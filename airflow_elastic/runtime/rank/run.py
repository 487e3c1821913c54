"""Runs a training script as one rank; the process starts with `start_rank.py`.

It only adds evidence. SIGUSR1 prints the stacks of all threads. An exception that ends the script is written down, so
that the task can show the traceback of the first rank that failed. The script need not know of it. This module imports
nothing large, because each restart waits for it.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.adapters.host.processes import be_called
from airflow_elastic.runtime.rank import main_module
from airflow_elastic.runtime.rank.error_file import ErrorFile

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def main(arguments: list[str], loaded: Collection[str], path: Sequence[str]) -> None:
    """Run the script, module or program in the arguments. With --fork-server, --node-host and --pod, forks do.

    Args:
        arguments: of `start_rank.py`.
        loaded: see `main_module.run`.
        path: see `main_module.run`.
    """
    if arguments[:1] == ["--fork-server"]:
        from airflow_elastic.runtime.forks.server import serve

        arguments = serve(int(arguments[1]))
    elif arguments[:1] == ["--node-host"]:
        from airflow_elastic.runtime.agent.node_host import host

        arguments = host(Path(arguments[1]))
    elif arguments[:1] == ["--pod"]:
        from airflow_elastic.runtime.pod import be_pod

        arguments = be_pod()
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
    """Become a program of the user. A Python process that it starts should print at once, as ranks do."""
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's command, without a shell
    except FileNotFoundError:
        _refuse(command[0], "no such file", last)
    except OSError as error:
        _refuse(command[0], "not executable" if isinstance(error, PermissionError) else str(error), last)


def _refuse(command: str, why: str, last: ErrorFile) -> None:
    text = f"{command}: {why} (looked for from {os.getcwd()}): name a script that exists on the worker"
    last.write(text)
    sys.stderr.write(text + "\n")
    sys.exit(127 if why == "no such file" else 126)
