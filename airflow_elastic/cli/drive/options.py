"""The options of `airflow-elastic run` that make the specification of a run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import InvalidInput, SpecError
from airflow_elastic.spec.models.start import is_absolute
from airflow_elastic.spec.run import RESTART_POLICIES, SECRET_SOURCES, RunSpec

Command = Callable[..., Any]


def _pair(form: str) -> dict[str, Any]:
    """Settings of an option `LEFT=RIGHT` that may be given several times. Each value becomes a tuple of two strings."""

    def parse(value: str) -> tuple[str, str]:
        left, equals, right = value.partition("=")
        if not left or not equals:  # the value is not repeated: it may be a secret
            raise click.BadParameter(f"what was given is not of the form {form}")
        return left, right

    return {"multiple": True, "type": parse, "metavar": form}


#: The field of the specification that each option sets.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "name": ("name",),
    "engine": ("engine",),
    "launcher": ("launcher",),
    "working_dir": ("working_dir",),
    "workers": ("workers", "count"),
    "min": ("workers", "min"),
    "max": ("workers", "max"),
    "procs": ("workers", "procs"),
    "standby": ("workers", "standby"),
    "every_steps": ("checkpoint", "every_steps"),
    "every_seconds": ("checkpoint", "every_seconds"),
    "auto_interval": ("checkpoint", "auto_interval"),
    "memory_every_steps": ("checkpoint", "memory_every_steps"),
    "buddies": ("checkpoint", "buddies"),
    "disk": ("checkpoint", "disk"),
    "disk_every_steps": ("checkpoint", "disk_every_steps"),
    "disk_keep": ("checkpoint", "disk_keep_last"),
    "overlap": ("checkpoint", "overlap"),
    "account_samples": ("checkpoint", "account_samples"),
    "keep": ("checkpoint", "keep_last"),
    "keep_every_steps": ("checkpoint", "keep_every_steps"),
    "keep_best": ("checkpoint", "keep_best"),
    "restart_policy": ("restart", "policy"),
    "backoff_limit": ("restart", "backoff_limit"),
    "deadline": ("active_deadline_seconds",),
    "tensorboard": ("tensorboard",),
    "early_stop": ("early_stop",),
    "start_from": ("start_from", "source"),
    "start_step": ("start_from", "step"),
    "start_best": ("start_from", "best"),
    "start_optimizer": ("start_from", "optimizer"),
    "start_optional": ("start_from", "optional"),
}

_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    click.option("--engine", help="Where workers run.  [default: local]"),
    click.option("--launcher", help="How ranks are started.  [default: torchrun]"),
    click.option("--workers", type=int, metavar="N", help="Workers to start with.  [default: 1]"),
    click.option("--min", type=int, metavar="N", help="Fewest workers.  [default: as --workers]"),
    click.option("--max", type=int, metavar="N", help="Most workers.  [default: as --workers]"),
    click.option("--procs", type=int, metavar="N", help="Ranks of each worker.  [default: 1]"),
    click.option(
        "--standby",
        type=int,
        metavar="N",
        help="Workers that stand by to take the place of a lost one at once.  [default: 0]",
    ),
    click.option("--name", help="Names jobs and logs.  [default: after the script]"),
    click.option(
        "--working-dir", metavar="PATH", help="Where the script runs.  [default, engine local: here]"
    ),
    click.option("--every-steps", type=int, metavar="N", help="Save after every N optimizer steps."),
    click.option(
        "--every-seconds", type=float, metavar="S", help="Save when the newest is S s old.  [default: 300]"
    ),
    click.option(
        "--auto-interval",
        is_flag=True,
        default=None,
        help="Choose the interval from measured costs and failures.",
    ),
    click.option("--memory-every-steps", type=int, metavar="N", help="Save into memory after every N steps."),
    click.option(
        "--buddies",
        is_flag=True,
        default=None,
        help="Each worker's memory also keeps the state of another worker.",
    ),
    click.option("--disk", metavar="PATH", help="Save to the workers' own disks, too."),
    click.option(
        "--disk-every-steps", type=int, metavar="N", help="Save only to these disks after every N steps."
    ),
    click.option(
        "--disk-keep", type=int, metavar="N", help="Checkpoints to keep on each disk.  [default: 3]"
    ),
    click.option("--overlap", is_flag=True, default=None, help="Copy the state while training goes on."),
    click.option(
        "--account-samples", is_flag=True, default=None, help="Record the samples of each rank, for verify."
    ),
    click.option("--keep", type=int, metavar="N", help="Checkpoints to keep.  [default: 3]"),
    click.option(
        "--keep-every-steps", type=int, metavar="N", help="Also keep an older checkpoint of every N steps."
    ),
    click.option(
        "--keep-best", metavar="'min METRIC'", help="Also keep the one with the best value of a metric."
    ),
    click.option("--restart-policy", type=click.Choice(RESTART_POLICIES), help="[default: OnFailure]"),
    click.option("--backoff-limit", type=int, metavar="N", help="Restarts the run may use.  [default: 6]"),
    click.option(
        "--deadline", type=float, metavar="S", help="End the run after S seconds.  [default: no limit]"
    ),
    click.option(
        "--early-stop", metavar="'METRIC N'", help="End when a metric has not improved for N reports."
    ),
    click.option(
        "--start-from", metavar="URI", help="Begin with the weights of a run, a promoted model, or a file."
    ),
    click.option("--start-step", type=int, metavar="N", help="Of that run: the checkpoint of step N."),
    click.option("--start-best", metavar="'min METRIC'", help="Of that run: the best one by a metric."),
    click.option(
        "--start-optimizer", is_flag=True, default=None, help="Also take over the state of the optimizers."
    ),
    click.option(
        "--start-optional", is_flag=True, default=None, help="Begin from scratch if there is nothing yet."
    ),
    click.option("--tensorboard", is_flag=True, default=None, help="Write event files of TensorBoard."),
    click.option("--env", **_pair("K=V"), help="A variable of the workers; no secrets."),
    click.option(
        "--secret",
        **_pair("NAME=env:KEY|file:PATH"),
        help="A variable of the workers; its value is never stored.",
    ),
    click.option("--scale-at", **_pair("STEP=N"), help="A planned scale step: N workers from STEP on."),
    click.option("--engine-option", **_pair("K=V"), help="An option of the engine."),
    click.option("--launcher-option", **_pair("K=V"), help="An option of the launcher, e.g. start=cold."),
)


def spec_options(command: Command) -> Command:
    """Add all options of the specification to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def with_overrides(
    base: Mapping[str, Any], options: Mapping[str, Any], command: tuple[str, ...]
) -> dict[str, Any]:
    """Plain values of a specification: those of `base`, overridden by the options and the command."""
    plain = {**base, **({"command": list(command)} if command else {})}
    words = base.get("command")
    if command and isinstance(words, list) and words[:1] != [command[0]]:
        plain.pop("script", None)  # it is the text of another file
    if isinstance(source := plain.get("start_from"), str):
        plain["start_from"] = {"source": source}
    if (source := options["start_from"]) is not None and not is_absolute(source):
        options = {**options, "start_from": os.path.abspath(os.path.expanduser(source))}
    for option, path in _FIELDS.items():
        if options[option] is not None:
            _put(plain, path, options[option])
    for key, option in _MAPPINGS.items():
        if options[option]:
            plain[key] = {**(plain.get(key) or {}), **dict(options[option])}
    if options["secret"]:
        plain["secrets"] = [*_others(plain.get("secrets"), options["secret"]), *_secrets(options["secret"])]
    if options["scale_at"]:
        plain["scaling"] = [
            {"at_step": _whole(step), "workers": _whole(n)} for step, n in options["scale_at"]
        ]
    return plain


def as_typed(error: SpecError, options: Mapping[str, Any], *, nothing_else: bool) -> SpecError:
    """The same problems, under the names of the options that they come from.

    Args:
        error: the problems.
        options: what was typed.
        nothing_else: whether all other fields have their defaults. Then problems of these also get names of options.
    """
    names = {
        ".".join(path): _option(option)
        for option, path in _FIELDS.items()
        if options[option] is not None or nothing_else
    }
    references = {path: name for path, name in names.items() if path not in _PLAIN_WORDS}
    problems = []
    for problem in error.problems:
        path = _typed_path(problem.path, options) or names.get(problem.path) or problem.path
        problems.append(problem.renamed(path, references))
    return SpecError(*problems)


#: Fields that are mappings, with the options that give their values one by one.
_MAPPINGS = {"env": "env", "engine_options": "engine_option", "launcher_options": "launcher_option"}

#: Fields whose paths are also plain words.
_PLAIN_WORDS = frozenset({"name", "engine", "launcher"})


def _option(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _typed_path(path: str, options: Mapping[str, Any]) -> str | None:
    """The name for a field of an option that may be given several times. None for another field."""
    group, _, rest = path.partition(".")
    index = rest.partition(".")[0]
    if group == "scaling" and options["scale_at"] and index.isdigit():
        return "--scale-at {}={}".format(*options["scale_at"][int(index)])
    if group in _MAPPINGS and rest in dict(options[_MAPPINGS[group]]):
        return f"{_option(_MAPPINGS[group])} {rest}"
    return None


def with_defaults(plain: dict[str, Any]) -> dict[str, Any]:
    """Plain values of a new run, with default name and folder."""
    words = plain.get("command")
    if "name" not in plain and isinstance(words, list) and words:
        plain = {**plain, "name": _name_after(words)}
    folder = plain.get("working_dir")
    if plain.get("engine", "local") == "local" and (folder is None or isinstance(folder, str)):
        # Absolute, so that the run can go on from another folder and still finds its script.
        plain = {**plain, "working_dir": os.path.abspath(folder or ".")}
    return plain


def check_here(spec: RunSpec) -> None:
    """Refuse a run that would fail for certain, before anything is created."""
    script = spec.command[0]
    if spec.engine == "local" and spec.script is None and script.endswith(".py"):
        path = Path(spec.working_dir or ".") / script
        if not path.is_file():
            raise InvalidInput(f"{path}: there is no such script; name one that exists, after --")
    disk, keep = spec.checkpoint.disk, spec.checkpoint.disk_keep_last
    # Not refused by the specification, because existing journals may have it.
    if disk is None and keep != CheckpointPolicy().disk_keep_last:
        raise InvalidInput(f"--disk-keep: given {keep}; allowed: with --disk, the folder to keep them in")
    if spec.engine == "local" and disk is not None and not Path(disk).is_dir():
        raise InvalidInput(f"--disk: there is no folder {disk} on this machine; mount one, or name another")
    check_secrets(spec)


def check_secrets(spec: RunSpec) -> None:
    """Refuse secrets from environment variables that this shell does not have."""
    for secret in spec.secrets:
        if secret.source == "env" and secret.key not in os.environ:
            raise InvalidInput(
                f"the secret {secret.name} must come from the environment variable {secret.key}, which is not set "
                "in this shell: set it first"
            )


def _put(plain: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    if len(path) == 1:
        plain[path[0]] = value
    else:
        group = plain.get(path[0])
        # If the file has no mapping here, the specification refuses it with a better message.
        if group is None or isinstance(group, Mapping):
            plain[path[0]] = {**(group or {}), path[1]: value}


def _secrets(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    found = []
    for name, reference in pairs:
        source, colon, key = reference.partition(":")
        if not colon or source not in SECRET_SOURCES:  # not repeated: it may be the secret itself
            raise InvalidInput(
                f"--secret {name}=...: wanted is {name}=env:KEY or {name}=file:PATH, never the value"
            )
        found.append({"name": name, "source": source, "key": key})
    return found


def _others(secrets: Any, pairs: Iterable[tuple[str, str]]) -> list[Any]:
    names = {name for name, _ in pairs}
    given = secrets if isinstance(secrets, list) else []
    return [s for s in given if not (isinstance(s, Mapping) and s.get("name") in names)]


def _whole(text: str) -> int | str:
    """The number; else the text, which the specification refuses with a message."""
    try:
        return int(text)
    except ValueError:
        return text


def _name_after(words: list[Any]) -> str:
    script = str(words[1] if words[0] == "-m" and len(words) > 1 else words[0])
    stem = Path(script).name.removesuffix(".py")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:200] or "run"
