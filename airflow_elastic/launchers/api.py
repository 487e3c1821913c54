"""The launcher seam: what a launcher is, and how one is found by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters import plugins
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import Problem, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_elastic.spec.run import RunSpec

GROUP = "airflow_elastic.launchers"

#: How a module is run that is not the user's own: the folder that a run is started in has nothing that it imports.
BY_NAME = ("-P", "-m")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker stands in its attempt, once all workers have met.

    Attributes:
        python: the interpreter to use.
        node_rank: index of this worker, from 0.
        nodes: number of workers.
        master_addr: address of worker 0.
        master_port: a port that is free there.
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
        name: as the run specification names it.
        summary: one line for `doctor` and the docs.
        command: renders the worker's command line. For a launcher that is `elastic` it is the command of *one rank*,
            which our agent starts; for any other it is the command that starts all ranks of the worker.
        elastic: whether workers may join and leave a live attempt.
        spare: for an elastic launcher, renders the command of a process that imports ahead what ranks will need and
            becomes one when it is told which, with this interpreter: it reads one line of JSON, the rank's `command`,
            `environment` and `output`, a file. No words where ranks have to be started afresh. None for a launcher
            without any.
        check: refuses specifications that the launcher cannot carry out, by raising SpecError.
        options: a dataclass that `launcher_options` are decoded into; None for a launcher without any.
        module: a module that must be importable on the workers; None for none but our own.
    """

    name: str
    summary: str
    command: Callable[[RunSpec, Place], list[str]]
    elastic: bool = False
    spare: Callable[[RunSpec, str], list[str]] | None = None
    check: Callable[[RunSpec], None] = lambda spec: None
    module: str | None = None
    options: type[Any] | None = None

    def refuse(self, spec: RunSpec) -> None:
        """Raise SpecError for options it does not have, for what only elastic ones can do, and what `check` refuses."""
        self.options_of(spec)
        for name, none in (("buddies", False), ("disk", None)):
            given = getattr(spec.checkpoint, name)
            if given != none and not self.elastic:
                off = "none" if none is None else "false"
                allowed = f"{off} with the launcher {self.name}, whose workers do not meet by our agents: use torchrun"
                raise SpecError(Problem(f"checkpoint.{name}", given, allowed))
        self.check(spec)

    def options_of(self, spec: RunSpec) -> Any:
        """The launcher's options, decoded. Raises SpecError with the paths of bad ones, below `launcher_options`."""
        try:
            return decode(self.options or _NoOptions, dict(spec.launcher_options))
        except SpecError as error:
            raise error.below("launcher_options") from None


@dataclass(frozen=True, slots=True)
class _NoOptions:
    """Of a launcher that has none."""


def launcher_names() -> list[str]:
    """The names of all launchers that are installed."""
    return plugins.names(GROUP)


def find_launcher(name: str) -> Launcher:
    """The launcher of that name, or the one that `module:NAME` names.

    Raises:
        SpecError: there is none; says which there are.
    """
    launcher: Launcher = plugins.load(GROUP, name, "launcher")
    return launcher


def module_or_script(spec: RunSpec) -> list[str]:
    """The command as torchrun, and whoever takes after it, wants it: a module by `--module`, where we write `-m`."""
    return ["--module", *spec.command[1:]] if spec.command[0] == "-m" else list(spec.command)
