"""A forked process, as its parent sees it: what `subprocess` knows of those that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

from airflow_elastic.adapters.host.processes import readable


class Child:
    """A child of this process. Of a rank, its former parent has ended: see `man 2 prctl`.

    Attributes:
        pid: its process id, which is that of its process group, too.
        returncode: how it has ended, negative for a signal; None while it runs, as far as anybody has looked.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds: float) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                readable(descriptor, seconds)
            finally:
                os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", seconds)
        return code

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> bool:
        """Once it has ended, reap the processes that it has left to this one. Returns whether none of them lives."""
        if self.returncode is None:
            return False
        try:
            while os.waitpid(-self.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False

    def belongs(self) -> bool:
        """Whether it is a child of this process. If it is not, nobody would learn how it ends: it is killed."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            return False
        return True
