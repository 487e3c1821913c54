"""The launchers' own options: those that become fields of the run, and those that a run replaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_elastic.engines.kube.manifests.commands.variables import marked, unmarked
from airflow_elastic.spec.errors import Problem, SpecError

#: Modules that are launchers.
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "torch.distributed.elastic.run": "torchrun",
    "dlrover.trainer.torch.elastic_run": "dlrover-run",
    "accelerate.commands.launch": "accelerate launch",
}

#: Folders with programs of several interpreters.
_SHARED = ("/bin", "/usr/bin", "/usr/local/bin", ".", "bin")

#: The run has its own rendezvous, and its agent watches the ranks: these options have no meaning in it.
_MEETING = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "local_addr", "master_addr", "master_port"),
    *("node_rank", "monitor_interval", "start_method"),
)
_ACCELERATE_MEETING = (
    *("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "rdzv_conf", "same_network"),
    *("monitor_interval",),
)
_DLROVER_FLAGS = (
    *("auto_config", "auto_tunning", "exclude_straggler", "save_at_breakpoint", "numa_affinity"),
    *("network_check", "comm_perf_test"),
)


@dataclass(slots=True)
class Launch:
    """The parts of a command line.

    Attributes:
        launcher: name of the launcher.
        command: the script, or the program, and its arguments.
        python: the interpreter, if one is named.
        procs: ranks of a worker, in the words of the command: a number, or `auto`, `gpu` and `cpu`.
        ranks: of all workers together, if the command has that instead.
        nodes: the fewest and the most workers, if the command has them.
        max_restarts: as in the command.
        options: of the launcher.
        wrapper: the command before the launcher, as the words of a container's command.
        deadline: the time limit in seconds.
    """

    launcher: str
    command: tuple[str, ...]
    python: str | None = None
    procs: str | None = None
    ranks: int | None = None
    nodes: tuple[int, int] | None = None
    max_restarts: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    deadline: float | None = None


def launcher_of(words: Sequence[str]) -> tuple[str, str | None, list[str]] | None:
    """The launcher in these words, its interpreter if named, and the words after it; None for any other program."""
    first, rest = words[0].rpartition("/")[2], list(words[1:])
    if first == "accelerate" and rest[:1] == ["launch"]:
        return "accelerate launch", _python_of(words[0]), rest[1:]
    if first in ("accelerate-launch", "torchrun", "dlrover-run"):
        return first.replace("-launch", " launch"), _python_of(words[0]), rest
    if not is_python(words[0]):
        return None
    while (
        rest and rest[0].startswith("-") and rest[0] != "-m"
    ):  # options of an interpreter that starts others
        if rest[0] == "-c" or len(rest) < 2:
            return None
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in MODULES:
        return MODULES[rest[1]], words[0], rest[2:]
    if rest and rest[0].rpartition("/")[2] in ("torchrun", "dlrover-run"):
        return rest[0].rpartition("/")[2], words[0], rest[1:]
    return None


def _python_of(launcher: str) -> str | None:
    """The interpreter of a launcher with a path: the one beside it, as in a virtual environment.

    In shared folders for programs it may be any: None.
    """
    folder = launcher.rpartition("/")[0]
    shared = not folder or folder in _SHARED or folder.endswith("/.local/bin")
    return None if shared or marked(launcher) is not None else f"{folder}/python"


def is_python(word: str) -> bool:
    """Whether a program is a Python interpreter."""
    return re.fullmatch(r"(.*/)?python(\d(\.\d+)?)?", word) is not None


def launch_of(name: str, python: str | None, words: Sequence[str], path: str) -> Launch:
    """Read a launcher's options, and the script behind them.

    Args:
        name: of the launcher.
        python: the interpreter that starts it, if one is named.
        words: the words after the launcher's name.
        path: of the command, for errors.

    Raises:
        SpecError: a part of it cannot be kept.
    """
    found = Launch(name.split(maxsplit=1)[0], (), python)
    if name == "torch.distributed.launch":
        name, found.launcher = "torchrun", "torchrun"
        flags = [word.lstrip("-").replace("-", "_") for word in words]
        if "use_env" not in flags:
            text = "torchrun, or --use-env behind it: otherwise each rank gets --local-rank, which a run does not do"
            raise SpecError(Problem(path, "torch.distributed.launch", text))
    rest = list(words)
    while rest and rest[0].startswith("-"):
        if rest[0] in ("-m", "--module"):
            rest[0] = "-m"
            break
        _option(name, rest, found, path)
    if not rest:
        raise SpecError(Problem(path, name, "a script behind the launcher's options"))
    found.command = tuple(refuse_marks(rest, path))
    return found


def refuse_marks(words: Sequence[str], path: str) -> Sequence[str]:
    """The same words. Raises SpecError if only the pod would know a part of them."""
    for word in words:
        if (unknown := marked(word)) is not None:
            text = (
                f"an argument without {unknown}, which only the pod knows: the agent starts the command "
                "without a shell. Write its value, set it in `env`, or read it in the script"
            )
            raise SpecError(Problem(path, unmarked(word), text))
    return words


def _option(name: str, rest: list[str], found: Launch, path: str) -> None:
    """Take the first option, with its value, out of the words."""
    word = rest.pop(0)
    option, equals, value = word.partition("=")
    takes = _TAKES[name]
    flags = [*_FLAGS[name], *(_DLROVER_FLAGS if name == "dlrover-run" else ())]
    key = _whole(option.lstrip("-").replace("-", "_"), [*takes, *flags])
    if key in _DLROVER_FLAGS and key in flags:
        found.options[key] = True
        return
    if key in flags:
        return
    if key not in takes:
        why = _REFUSED.get(key)
        known = ", ".join(sorted([*takes, *flags, "module"]))
        raise SpecError(
            Problem(path, unmarked(word), why or f"an option of {name} that the run can keep: {known}")
        )
    if not equals:
        if not rest:
            raise SpecError(Problem(path, word, "a value behind this option"))
        value = rest.pop(0)
    if takes[key] is not _nothing:
        refuse_marks([value], path)
    try:
        takes[key](found, value)
    except ValueError:
        raise SpecError(Problem(path, f"{option} {value}", "a number")) from None


def _whole(key: str, known: Sequence[str]) -> str:
    """The full name of an option that is abbreviated, as argparse allows it."""
    longer = [one for one in known if one.startswith(key)]
    return longer[0] if key not in known and len(longer) == 1 and len(key) > 2 else key


def _nodes(found: Launch, value: str) -> None:
    least, _, most = value.partition(":")
    found.nodes = (int(least), int(most or least))


def _procs(found: Launch, value: str) -> None:
    if value not in ("auto", "gpu", "cpu"):
        int(value)
    found.procs = value


def _ranks(found: Launch, value: str) -> None:
    found.ranks = int(value)


def _max_restarts(found: Launch, value: str) -> None:
    found.max_restarts = int(value)


def _nothing(found: Launch, value: str) -> None:
    """Ignored: the run has its own."""


def _keep(name: str, kind: type) -> Callable[[Launch, str], None]:
    return lambda found, value: found.options.__setitem__(name, kind(value))


_Takes = Mapping[str, Callable[[Launch, str], None]]

_TORCHRUN: _Takes = {
    "nnodes": _nodes,
    "nproc_per_node": _procs,
    "max_restarts": _max_restarts,
    **dict.fromkeys(_MEETING, _nothing),
}
_TAKES: Mapping[str, _Takes] = {
    "torchrun": _TORCHRUN,
    "dlrover-run": {
        **_TORCHRUN,
        "precheck": _keep("precheck", int),
        "accelerator": _keep("accelerator", str),
        "training_port": _keep("training_port", int),
        "node_unit": _keep("node_unit", int),
    },
    "accelerate launch": {
        "num_machines": _nodes,
        "num_processes": _ranks,
        "max_restarts": _max_restarts,
        **dict.fromkeys(_ACCELERATE_MEETING, _nothing),
    },
}
#: Options without a value. Programs are run as such anyway; devices follow from resources.
_FLAGS: Mapping[str, tuple[str, ...]] = {
    "torchrun": ("no_python", "standalone", "use_env"),
    "dlrover-run": ("no_python", "standalone", "use_env"),
    "accelerate launch": ("cpu", "multi_gpu", "no_python"),
}
_REFUSED = {
    **dict.fromkeys(
        ("log_dir", "redirects", "tee", "r", "t", "local_ranks_filter", "logs_specs"),
        "no such option: the run keeps the output of every rank, and `airflow-elastic logs` shows it",
    ),
    "config_file": "the options that the file holds: it is not known here",
    "mixed_precision": "no such option: give it to Accelerator(mixed_precision=…) in the script",
}
