"""A rank's connection to its agent, while it is in `run.train` and can stay for the next generation.

The rank says lines of JSON: `{"left": "parked"}` or `{"left": "broken"}`, and `{"joined": true}`. The agent says
`{"leave": true}`, and then a `NextGeneration`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

#: The name of the agent's socket.
ENVIRONMENT = "AIRFLOW_ELASTIC_AGENT_SOCKET"

#: Where an error of this rank is written, once it has joined another generation: the newest is the last one.
error_paths: list[str] = []

_LONGEST_TRACE, _LONGEST_LINE = 20_000, 2_000


class LeaveGeneration(BaseException):
    """Ends the function of `run.train`, because the rank leaves its generation. No `except Exception` catches it."""


def has_stayed() -> bool:
    """Whether this process was in the generation before, too."""
    return bool(error_paths)


@dataclass(frozen=True, slots=True)
class NextGeneration:
    """What a rank needs to join another generation.

    Attributes:
        environment: variables that have another value now.
        gone: variables that are not set any more.
        output: file for its output.
    """

    environment: Mapping[str, str]
    output: str
    gone: tuple[str, ...] = field(default=())

    @classmethod
    def after(cls, former: Mapping[str, str], following: Mapping[str, str], output: Path) -> NextGeneration:
        """What differs between two environments. What the script has changed itself is left alone."""
        changed = {name: value for name, value in following.items() if former.get(name) != value}
        return cls(changed, f"{output.absolute()}", tuple(former.keys() - following.keys()))

    def encoded(self) -> dict[str, object]:
        """As JSON has it."""
        return asdict(self)

    def apply(self) -> None:
        """Change this process: its environment, the file that it prints to, its name, the file for its error."""
        os.environ.update(self.environment)
        for name in self.gone:
            os.environ.pop(name, None)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the script may have replaced it
                stream.flush()
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        error_paths.extend(filter(None, [_error_file()]))
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(f"rank-{os.environ['RANK']}")


class AgentLink:
    """The connection. A thread listens, because the rank may be blocked in a collective when it must leave.

    Args:
        name: of the agent's socket.
        wake: called in that thread when the rank must leave: ends collectives that block it.

    Attributes:
        leaving: whether this rank has the order to leave its generation.

    Raises:
        OSError: the agent is gone.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self.leaving, self._has_left, self._wake = False, False, wake
        self._orders: queue.SimpleQueue[NextGeneration | None] = queue.SimpleQueue()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.connect(f"\0{name}")
        threading.Thread(target=self._listen, name="agent", daemon=True).start()

    def left(self, why: str) -> None:
        """Say that this rank neither computes nor saves any more."""
        self._has_left = True
        self._say({"left": why})

    def next(self) -> NextGeneration | None:
        """Wait for the next generation, which this rank may join. None if the agent is gone."""
        return self._orders.get()

    def joined(self) -> None:
        """Say that this rank joins the next generation."""
        self.leaving = self._has_left = False
        self._say({"joined": True})

    def close(self) -> None:
        """The rank can no longer stay."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # children that it has forked have it, too
        self._socket.close()

    def _say(self, what: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the agent is gone, which `next` reports
            self._socket.sendall(json.dumps(what).encode() + b"\n")

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("rb") as lines:
            for line in lines:
                order = json.loads(line)
                if "leave" in order:
                    self.leaving = True
                    if not self._has_left:  # else nothing blocks it, and others may still hear from it
                        self._wake()
                else:
                    order["gone"] = tuple(order["gone"])
                    self._orders.put(NextGeneration(**order))
        self._orders.put(None)


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error in words. The error itself keeps alive what its frames have used, such as the model.

    Attributes:
        error: in one line.
        traceback: as Python prints it.
        at: epoch seconds.
    """

    error: str
    traceback: str
    at: float

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Put an error in words, and let go of its frames."""
        line = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_LINE]
        told = cls(line, "".join(traceback.format_exception(error))[-_LONGEST_TRACE:], time.time())
        let_go(error)
        return told

    def write(self) -> None:
        """Write down why this rank leaves, as for an exception that ends its process."""
        if (path := _error_file()) is not None:
            with contextlib.suppress(OSError):
                Path(path).write_text(json.dumps(asdict(self)))


def let_go(error: BaseException | None) -> None:
    """Let go of the frames of an error and its causes.

    A frame without its variables still refers to its function, and a closure of torch's refers to the module.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _error_file() -> str | None:
    prefix, rank = os.environ.get("AIRFLOW_ELASTIC_RANK_FILES"), os.environ.get("RANK")
    return os.path.abspath(f"{prefix}-rank-{rank}.error.json") if prefix and rank else None
