"""From the command of somebody's manifest to a launcher and a script, purely."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.spec.errors import Problem, SpecError

_PYTHON = re.compile(r"(.*/)?python(\d(\.\d+)?)?")
_SHELLS = ("sh", "bash", "dash", "zsh")
_LAUNCHERS = (
    "torchrun",
    "accelerate",
    "dlrover-run",
    "horovodrun",
    "deepspeed",
    "mpirun",
    "torch.distributed",
)

#: Modules that are commands.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "dlrover.trainer.torch.elastic_run": "dlrover-run",
    "accelerate.commands.launch": "accelerate launch",
}

#: How workers meet is the run's own: these have no meaning in it. With a value, and without.
_MEETING = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr", "master_addr", "master_port"),
    "node_rank",
)
_ACCELERATE_MEETING = ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend")
_DLROVER_FLAGS = (
    *("auto_config", "auto_tunning", "exclude_straggler", "save_at_breakpoint", "numa_affinity"),
    *("network_check", "comm_perf_test"),
)


@dataclass(slots=True)
class Launch:
    """What a command line says.

    Attributes:
        launcher: name of the launcher.
        command: the script, or the program, and its arguments.
        python: the interpreter, where one is named.
        procs: ranks of a worker, as the command says: a number, or `auto` and `gpu`.
        nodes: of a command that says how many, the least and the most.
        max_restarts: as the command says.
        options: of the launcher.
    """

    launcher: str
    command: tuple[str, ...]
    python: str | None = None
    procs: str | None = None
    nodes: tuple[int, int] | None = None
    max_restarts: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


def launch_of(words: Sequence[str], path: str, variables: Sequence[str] = ()) -> Launch:
    """How a container's command starts ranks.

    Args:
        words: `command` and `args`, one after another.
        path: of the command, for errors.
        variables: names that Kubernetes would put in place of `$(NAME)`.

    Raises:
        SpecError: a part of it cannot be kept.
    """
    for word in words:
        named = [one for one in re.findall(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", word) if one in variables]
        if named or "$$(" in word:
            text = "arguments without $(VARIABLE): only Kubernetes would fill them in, and the agent starts the command"
            raise SpecError(Problem(path, word, text))
    first = words[0].rpartition("/")[2]
    if first == "accelerate" and words[1:2] == ["launch"]:
        return _launcher("accelerate launch", list(words[2:]), path)
    if first in ("torchrun", "dlrover-run"):
        return _launcher(first, list(words[1:]), path)
    if first in _SHELLS and any(name in word for word in words[1:] for name in _LAUNCHERS):
        text = "the launcher's command as a list of words: within a shell's line its options cannot be read"
        raise SpecError(Problem(path, list(words), text))
    if first in _LAUNCHERS:
        text = "torchrun, accelerate launch, dlrover-run, python or a program that is one rank"
        raise SpecError(Problem(path, list(words), text))
    if _PYTHON.fullmatch(words[0]):
        return _python(words, path)
    return Launch("python", tuple(words))


def _python(words: Sequence[str], path: str) -> Launch:
    rest = list(words[1:])
    while rest[:1] == ["-u"]:  # the agent's ranks never buffer
        rest.pop(0)
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _MODULES:
        found = _launcher(_MODULES[rest[1]], rest[2:], path)
        found.python = words[0]
        return found
    if rest[:1] == ["-m"] or (rest and rest[0].endswith(".py")):
        return Launch("python", tuple(rest), python=words[0])
    return Launch("python", tuple(words))


def _launcher(name: str, rest: list[str], path: str) -> Launch:
    found = Launch(name.split(maxsplit=1)[0], ())
    takes = {**_TORCHRUN, **_DLROVER} if name == "dlrover-run" else _TORCHRUN
    takes = _ACCELERATE if name == "accelerate launch" else takes
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word in ("-m", "--module"):
            rest = ["-m", *rest]
            break
        option, equals, value = word.partition("=")
        key = option.lstrip("-").replace("-", "_")
        if key in ("no_python", "standalone") or (
            name == "accelerate launch" and key in ("cpu", "multi_gpu")
        ):
            continue  # programs are run as such anyway; devices follow from resources
        if key in _DLROVER_FLAGS and name == "dlrover-run":
            found.options[key] = True
            continue
        if key not in takes:
            text = f"an option of {name} that the run can keep: {', '.join(sorted([*takes, 'module']))}"
            raise SpecError(Problem(path, word, text))
        if not equals:
            if not rest:
                raise SpecError(Problem(path, word, "a value behind this option"))
            value = rest.pop(0)
        try:
            takes[key](found, value)
        except ValueError:
            raise SpecError(Problem(path, f"{option} {value}", "a number")) from None
    if not rest:
        raise SpecError(Problem(path, name, "a script behind the launcher's options"))
    found.command = tuple(rest)
    return found


def _nodes(found: Launch, value: str) -> None:
    least, _, most = value.partition(":")
    found.nodes = (int(least), int(most or least))


def _procs(found: Launch, value: str) -> None:
    found.procs = value


def _max_restarts(found: Launch, value: str) -> None:
    found.max_restarts = int(value)


def _nothing(found: Launch, value: str) -> None:
    """The run's own."""


def _option(name: str, kind: type) -> Callable[[Launch, str], None]:
    return lambda found, value: found.options.__setitem__(name, kind(value))


_Takes = Mapping[str, Callable[[Launch, str], None]]

_TORCHRUN: _Takes = {
    "nnodes": _nodes,
    "nproc_per_node": _procs,
    "max_restarts": _max_restarts,
    **dict.fromkeys(_MEETING, _nothing),
}
_DLROVER: _Takes = {
    "precheck": _option("precheck", int),
    "accelerator": _option("accelerator", str),
    "training_port": _option("training_port", int),
    "node_unit": _option("node_unit", int),
}
_ACCELERATE: _Takes = {
    "num_machines": _nodes,
    **dict.fromkeys(_ACCELERATE_MEETING, _nothing),
}
