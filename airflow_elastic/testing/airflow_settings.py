"""What makes an Airflow one's own: its environment, its passwords, the program its parts are started by."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from airflow_elastic.testing.airflow_rest import AirflowError
from airflow_elastic.testing.airflow_sqlite import PART

# `airflow standalone` starts its parts as `airflow NAME` from the PATH. This script replaces that program. It notes
# each part's pid, and lets the part know which it is. It leaves out the log servers: they listen on all addresses, and
# one machine needs none.
_SHIM = """\
#!/bin/sh
echo $$ > {state}/"$1".pid
export {part}="$1"
case "$1" in
    scheduler|triggerer) exec {program} "$@" --skip-serve-logs ;;
    *) exec {program} "$@" ;;
esac
"""

_CONNECTION = "DATABASE__SQL_ALCHEMY_CONN"

_SQLITE = dict.fromkeys(
    ("DATABASE__SQL_ALCHEMY_CONNECT_ARGS", "DATABASE__SQL_ALCHEMY_CONNECT_ARGS_ASYNC"),
    "airflow_elastic.testing.airflow_sqlite.CONNECT_ARGS",
)

_TUNING = {
    "CORE__LOAD_EXAMPLES": "False",
    "CORE__EXECUTOR": "LocalExecutor",
    "CORE__HOSTNAME_CALLABLE": "socket.gethostname",  # The default asks the network.
    "CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "1",
    # A busy machine is no error: Airflow's own limits would fail tasks there, and DAG files.
    "CORE__DAGBAG_IMPORT_TIMEOUT": "120",
    "DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "240",
    "WORKERS__EXECUTION_API_TIMEOUT": "60",
    "API__WORKERS": "1",
    "DAG_PROCESSOR__REFRESH_INTERVAL": "3",
    "DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
    "DAG_PROCESSOR__PARSING_PROCESSES": "1",
    "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
    "SCHEDULER__TRIGGER_TIMEOUT_CHECK_INTERVAL": "5",
    "SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "30",  # What a dead scheduler had queued; the default is 5 minutes.
    "TRIGGERER__JOB_HEARTBEAT_SEC": "2",
    "LOGGING__COLORED_CONSOLE_LOG": "False",
    "USAGE_DATA_COLLECTION__ENABLED": "False",
}


def environment(
    home: Path,
    state: Path,
    program: Path,
    *,
    dags_folder: Path,
    port: int,
    users: Mapping[str, str],
    connections: Mapping[str, Mapping[str, Any] | str],
    parallelism: int,
    takeover: float,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """The environment of every process, with all of the developer's own Airflow settings taken out.

    Args:
        home: AIRFLOW_HOME.
        state: our own folder below it, with the passwords and the stand-in for `airflow`.
        program: the `airflow` to run.
        dags_folder: the DAG files.
        port: of the API server.
        users: role by user name.
        connections: by id, as a URI or a mapping.
        parallelism: tasks at once.
        takeover: seconds without a heartbeat that make a triggerer dead.
        extra: the last word.

    Raises:
        AirflowError: an environment variable cannot carry a connection of that id.
    """
    settings = _TUNING | {
        "CORE__DAGS_FOLDER": str(dags_folder),
        _CONNECTION: f"sqlite:///{home}/airflow.db",
        "CORE__PARALLELISM": str(parallelism),
        "CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in users.items()),
        "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(_password_file(state)),
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__BASE_URL": f"http://127.0.0.1:{port}",
        "TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": f"{takeover:.0f}",
    }
    if f"AIRFLOW__{_CONNECTION}" not in extra:  # another database would not understand them
        settings |= _SQLITE
    foreign = ("AIRFLOW", "_AIRFLOW", "PYTEST_")
    made = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    path = [str(shim_file(state).parent), str(program.parent), made.get("PATH", os.defpath)]
    inherited = made.get("NO_PROXY") or made.get("no_proxy")
    unproxied = ",".join(filter(None, [inherited, "127.0.0.1,localhost"]))
    made |= {
        "AIRFLOW_HOME": str(home),
        "PATH": os.pathsep.join(path),
        "PYTHONWARNINGS": "ignore",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
        "NO_PROXY": unproxied,
        "no_proxy": unproxied,
    }
    made |= {f"AIRFLOW__{name}": value for name, value in settings.items()}
    for name, connection in connections.items():
        if not re.fullmatch(r"\w+", name, re.ASCII):
            raise AirflowError(f"connections: given the id {name!r}; allowed: letters, digits and _")
        text = connection if isinstance(connection, str) else json.dumps(dict(connection))
        made[f"AIRFLOW_CONN_{name.upper()}"] = text
    return made | dict(extra)


def write_passwords(state: Path, users: Mapping[str, str], password: str | None) -> dict[str, str]:
    """Give every user a password, in the file that Airflow reads, and return all that it holds.

    Args:
        state: the folder of that file, made if missing.
        users: role by user name. Those that have a password keep it.
        password: of those that have none; None makes one up.
    """
    path = _password_file(state)
    state.mkdir(parents=True, exist_ok=True)
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    for name in users:
        known.setdefault(name, password or secrets.token_urlsafe(12))
    path.touch(mode=0o600)
    path.write_text(json.dumps(known))
    return known


def write_shim(state: Path, program: Path) -> None:
    """Write the program that stands in for `airflow` on the PATH of `airflow standalone`."""
    shim = shim_file(state)
    shim.parent.mkdir(parents=True, exist_ok=True)
    quoted = {"state": shlex.quote(str(state)), "program": shlex.quote(str(program))}
    shim.write_text(_SHIM.format(part=PART, **quoted))
    shim.chmod(0o755)


def pid_file(state: Path, part: str) -> Path:
    """Where the stand-in notes the pid of a part."""
    return state / f"{part}.pid"


def lock(state: Path, home: Path) -> IO[str]:
    """Keep other programs from running an Airflow in this home; the kernel lets go when we die.

    Raises:
        AirflowError: another program has the lock.
    """
    held = (state / "lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.close()
        raise AirflowError(
            f"another program runs an Airflow in {home}; stop that one, or choose another home"
        ) from None
    return held


def run(
    program: Path, arguments: Sequence[str], environment: Mapping[str, str], home: Path, timeout: float
) -> str:
    """Run `airflow ARGUMENTS…` to its end, and return what it printed.

    Raises:
        AirflowError: it failed, or took longer than `timeout` seconds.
    """
    line = f"airflow {shlex.join(arguments)}"
    try:
        done = subprocess.run(
            [str(program), *arguments],
            env=dict(environment),
            cwd=home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AirflowError(f"`{line}` took longer than {timeout:g} s") from error
    if done.returncode:
        printed = (done.stdout + done.stderr)[-2000:]
        raise AirflowError(f"`{line}` ended with {done.returncode}:\n{printed}")
    return done.stdout


def forget_pids(state: Path) -> None:
    """Remove what `pid_file` names, of all parts."""
    for path in state.glob("*.pid"):
        path.unlink(missing_ok=True)


def shim_file(state: Path) -> Path:
    """What `write_shim` writes."""
    return state / "bin" / "airflow"


def _password_file(state: Path) -> Path:
    return state / "passwords.json"
