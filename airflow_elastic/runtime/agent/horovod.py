"""Host discovery for elastic Horovod: the driver finds the workers, and they end when the driver does.

`lead` accepts a connection from each worker, runs the driver, and sends its exit code to all. `follow` runs an ssh
server while it is connected to the lead. The discovery script prints the connected workers, so one that is gone drops
out of its list.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from airflow_elastic.launchers.horovod import DISCOVERY

_CONNECT_SECONDS = 120.0


class Hosts:
    """The connected hosts, in a file that the discovery script prints: `address:slots`, one a line."""

    def __init__(self, folder: Path, own: str, slots: int) -> None:
        self._path, self._slots, self._lock = folder / "hosts", slots, threading.Lock()
        self._connected: dict[socket.socket, str] = {}
        self._own = own
        self.script = folder / "discover.sh"
        self.script.write_text(f"#!/bin/sh\nexec cat '{self._path}'\n")
        self.script.chmod(0o755)
        self._write()

    def join(self, connection: socket.socket, address: str) -> None:
        """Add a worker."""
        with self._lock:
            self._connected[connection] = address
            self._write()

    def leave(self, connection: socket.socket) -> None:
        """Remove a worker."""
        with self._lock:
            self._connected.pop(connection, None)
            self._write()

    def __len__(self) -> int:
        return 1 + len(self._connected)

    def send_exit_code(self, code: int) -> None:
        """Send the driver's exit code to all workers."""
        with self._lock:
            for connection in self._connected:
                with contextlib.suppress(OSError):
                    connection.sendall(f"{code}\n".encode())

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        lines = (f"{host}:{self._slots}\n" for host in (self._own, *self._connected.values()))
        new.write_text("".join(lines))
        new.replace(self._path)


def lead(address: str, port: int, slots: int, hosts: int, command: list[str]) -> int:
    """Run the driver once `hosts` hosts are connected. Returns its exit code."""
    with (
        # A host that leaves during the cleanup may still write its list here.
        tempfile.TemporaryDirectory(prefix="airflow-elastic-", ignore_cleanup_errors=True) as folder,
        socket.create_server(("", port)) as server,
    ):
        here = Hosts(Path(folder), address, slots)
        threading.Thread(target=_accept, args=(server, here), daemon=True).start()
        deadline = time.monotonic() + _CONNECT_SECONDS
        while len(here) < hosts:
            if time.monotonic() > deadline:
                print(f"Error: only {len(here)} of {hosts} workers came", file=sys.stderr)  # noqa: T201
                return 1
            time.sleep(0.05)
        words = [str(here.script) if word == DISCOVERY else word for word in command]
        code = _run(words)
        here.send_exit_code(code)
        return code


def _accept(server: socket.socket, hosts: Hosts) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, (address, *_) = server.accept()
            threading.Thread(target=_keep, args=(connection, address, hosts), daemon=True).start()


def _keep(connection: socket.socket, address: str, hosts: Hosts) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    hosts.join(connection, address)
    with connection, contextlib.suppress(OSError):
        connection.recv(1)  # a follower sends nothing: this returns when its connection ends
    hosts.leave(connection)


def follow(address: str, port: int, command: list[str]) -> int:
    """Run the ssh server until the lead ends. Returns the exit code that the lead sends, or 1 if it sends none."""
    with _connected(address, port) as connection, subprocess.Popen(command) as server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            said = connection.makefile("rb").readline()
        finally:
            server.terminate()
        return int(said) if said.strip() else 1


def _connected(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=10)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            connection.settimeout(None)
            return connection


def _run(command: list[str]) -> int:
    with subprocess.Popen(command) as driver:
        signal.signal(signal.SIGTERM, lambda *_: driver.terminate())
        code = driver.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    """Run the side that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=("lead", "follow"))
    parser.add_argument("--lead", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--hosts", type=int, default=1)
    cut = sys.argv.index("--")
    given, command = parser.parse_args(sys.argv[1:cut]), sys.argv[cut + 1 :]
    address, _, port = given.lead.rpartition(":")
    if given.side == "lead":
        return lead(address, int(port), given.slots, given.hosts, command)
    return follow(address, int(port), command)


if __name__ == "__main__":
    sys.exit(main())
