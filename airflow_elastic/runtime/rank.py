"""Runs a training script as one rank: `python -m airflow_elastic.runtime.rank -- train.py ARGS`, or `-- -m module`.

All it adds is evidence: standard error goes where standard output goes, SIGUSR1 prints the stacks of all threads, and
an exception that ends the script is kept as JSON beside the rank's page, so that the first failing rank's traceback
can be shown on the task. The script need not know. Imports nothing heavy: each restart waits for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback

from airflow_elastic.adapters.linux import be_called


def main(arguments: list[str]) -> None:
    """Run the script or module that the arguments name, as `python` itself would; with --stand-by, when told which."""
    if arguments[:1] == ["--stand-by"]:
        from airflow_elastic.runtime.spares import stand_by

        arguments = stand_by()
    be_called(f"rank-{os.environ.get('RANK', '?')}")
    os.dup2(1, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    script = os.path.abspath(command[0])  # before the script changes the folder
    try:
        if command[0] == "-m":
            sys.argv = command[1:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        elif command[0].endswith(".py"):
            sys.argv = command
            sys.path.insert(0, os.path.dirname(os.path.abspath(command[0])))
            runpy.run_path(command[0], run_name="__main__")
        else:
            os.execvp(command[0], command)  # noqa: S606 - a user's own program, as it stands
    except FileNotFoundError as error:
        if error.filename == command[0] or (command[0].endswith(".py") and not os.path.exists(command[0])):
            _refuse(command[0], "no such file")
        _keep(error, command[0], script)
        raise
    except PermissionError:
        if not os.access(command[0], os.X_OK) and not command[0].endswith(".py"):
            _refuse(command[0], "not executable")
        raise
    except Exception as error:
        _keep(error, command[0], script)
        raise


def _refuse(command: str, why: str) -> None:
    where = os.getcwd()
    text = f"{command}: {why} (looked for from {where}): name a script that exists on the worker"
    _write(error=text, trace=None)
    sys.stderr.write(text + "\n")
    sys.exit(127 if why == "no such file" else 126)


def _keep(error: BaseException, command: str, script: str) -> None:
    """Write down, and have printed, where the script failed: without the frames that led to it, by its whole path."""
    trace, ours = error.__traceback__, (__file__, runpy.__file__, runpy.run_path.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    told = "".join(traceback.format_exception(type(error), error, trace))
    told = told.replace(f'File "{command}", line', f'File "{script}", line')
    _write(error=_line(error), trace=told[-20000:])
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = lambda *_: sys.stderr.write(told)


def _line(error: BaseException) -> str:
    """What is wrong, in one line: of what a loader's worker has caught, what it was."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Caught ") and " worker process " in lines[0]:
        return lines[-1][:2000]
    return f"{type(error).__name__}: {' '.join(lines)}"[:2000]


def _write(*, error: str, trace: str | None) -> None:
    prefix, rank = os.environ.get("AIRFLOW_ELASTIC_RANK_FILES"), os.environ.get("RANK")
    if prefix and rank:
        try:
            with open(f"{prefix}-rank-{rank}.error.json", "w", encoding="utf-8") as file:
                json.dump({"error": error, "traceback": trace, "at": time.time()}, file)
        except OSError as full:  # what is wrong with the script is the better thing to be told
            sys.stderr.write(f"what has failed could not be written down: {full}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
