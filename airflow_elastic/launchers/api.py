"""The launcher interface: what a launcher is, and how one is found by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import airflow_elastic
from airflow_elastic.adapters import plugins
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.spec.run import RunSpec

GROUP = "airflow_elastic.launchers"

#: For modules that are not the user's own: with `-P` none of them is imported from the run's working folder.
BY_NAME = ("-P", "-m")

#: Starts a rank, by its path: the folder that the run is started in could have another module of its name, which `-m`
#: would import.
START_RANK = str(Path(airflow_elastic.__file__).parent / "runtime" / "rank" / "start_rank.py")


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place in its attempt, after the rendezvous.

    Attributes:
        python: the interpreter to use.
        node_rank: index of this worker, from 0.
        nodes: number of workers.
        master_addr: address of worker 0.
        master_port: a port that is free on that machine.
    """

    python: str
    node_rank: int
    nodes: int
    master_addr: str
    master_port: int


@dataclass(frozen=True, slots=True)
class Launcher:
    """One way to start ranks.

    Attributes:
        name: its name in the run specification.
        summary: one line for `doctor` and the docs.
        command: renders the worker's command line. For an `elastic` launcher this is the command of *one rank*, which
            our agent starts. For any other launcher it starts all ranks of the worker.
        elastic: whether workers may join and leave a live attempt.
        fork_server: for an elastic launcher, renders the command of a process, with this interpreter, that imports
            ahead what ranks need, and is forked for each rank. Its last argument, added to the command, is the
            descriptor of a socket: `runtime/forks/server.py` has the protocol. An empty list if ranks need a new
            process. None for a launcher without one.
        check: raises SpecError for specifications that the launcher cannot carry out.
        options: a dataclass that `launcher_options` are decoded into; None for a launcher without options.
        module: a module that must be importable on the workers; None if the launcher needs only this package.
    """

    name: str
    summary: str
    command: Callable[[RunSpec, Place], list[str]]
    elastic: bool = False
    fork_server: Callable[[RunSpec, str], list[str]] | None = None
    check: Callable[[RunSpec], None] = lambda spec: None
    module: str | None = None
    options: type[Any] | None = None

    def refuse(self, spec: RunSpec) -> None:
        """Raise SpecError for unknown options, for features of elastic launchers only, and for what `check` refuses."""
        self.options_of(spec)
        for name, none in (("buddies", False), ("disk", None)):
            given = getattr(spec.checkpoint, name)
            if given != none and not self.elastic:
                off = "none" if none is None else "false"
                allowed = f"{off} with the launcher {self.name}, whose workers do not meet by our agents: use torchrun"
                raise SpecError(Problem(f"checkpoint.{name}", given, allowed))
        self.check(spec)

    def forks(self, spec: RunSpec) -> bool:
        """Whether the ranks of such a run are forked, unless one of them has failed by that."""
        return self.fork_server is not None and bool(self.fork_server(spec, "python"))

    def options_of(self, spec: RunSpec) -> Any:
        """The launcher's options, decoded. Raises SpecError with the paths of bad options, below `launcher_options`."""
        try:
            return decode(self.options or _NoOptions, dict(spec.launcher_options))
        except SpecError as error:
            raise error.below("launcher_options") from None


@dataclass(frozen=True, slots=True)
class _NoOptions:
    """The options of a launcher without options."""


def launcher_names() -> list[str]:
    """The names of all installed launchers."""
    return plugins.names(GROUP)


def find_launcher(name: str) -> Launcher:
    """The launcher with this name, or at `module:NAME`.

    Raises:
        SpecError: there is none; the text lists the installed launchers.
    """
    launcher: Launcher = plugins.load(GROUP, name, "launcher")
    return launcher


def module_or_script(spec: RunSpec) -> list[str]:
    """The command in the form of torchrun and similar launchers: a module is `--module name` instead of `-m name`."""
    return ["--module", *spec.command[1:]] if spec.command[0] == "-m" else list(spec.command)
