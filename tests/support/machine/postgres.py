"""A PostgreSQL server of one's own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.ports import free_port
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

_USER = "postgres"


def programs() -> Path | None:
    """The folder of initdb and postgres; None where there is none. Debian leaves it out of the PATH."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return debian[-1].parent if debian else None


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Runs a server, and yields HOST:PORT/DATABASE with its user. It refuses to run as root, so it has a user then."""
    folder = programs()
    if folder is None:
        raise FileNotFoundError("there is no initdb: install PostgreSQL")
    user = _USER if os.geteuid() == 0 else None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="postgres-", ignore_cleanup_errors=True) as home:
        if user:
            shutil.chown(home, user)
        subprocess.run(
            [folder / "initdb", "-D", f"{home}/data", "-U", _USER, "--auth=trust", "--no-sync"],
            user=user,
            cwd=home,
            capture_output=True,
            check=True,
        )
        settings = {
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "off",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (Path(home) / "log").open("wb") as log:
            server = subprocess.Popen(
                [folder / "postgres", "-D", f"{home}/data", *options],
                user=user,
                cwd=home,
                stdout=log,
                stderr=log,
            )
        try:
            _wait(folder, port, server, Path(home) / "log")
            yield f"{_USER}@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
            server.wait()


def _wait(folder: Path, port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    ready = [folder / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]

    def answers() -> bool | None:
        assert server.poll() is None, f"PostgreSQL ended: {log.read_text()}"
        return subprocess.run(ready, check=False).returncode == 0 or None

    poll("PostgreSQL to answer", answers, timeout=PATIENCE_SECONDS, every=0.05, hint=log.read_text)
