"""From an operator's parameters to a run specification."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from airflow_elastic.spec.errors import Problem, SpecError
from airflow_elastic.spec.run import RunSpec

#: Where each parameter of the operator stands in a run specification.
PATHS = {
    "command": "command",
    "workers": "workers.count",
    "min_workers": "workers.min",
    "max_workers": "workers.max",
    "procs_per_worker": "workers.procs",
    "node_unit": "workers.node_unit",
    "worker_resources": "workers.resources",
    "launcher": "launcher",
    "launcher_options": "launcher_options",
    "engine": "engine",
    "engine_options": "engine_options",
    "working_dir": "working_dir",
    "checkpoint_every_steps": "checkpoint.every_steps",
    "checkpoint_every_seconds": "checkpoint.every_seconds",
    "keep_checkpoints": "checkpoint.keep_last",
    "restart_policy": "restart.policy",
    "restart_exit_codes": "restart.exit_codes",
    "backoff_limit": "restart.backoff_limit",
    "no_progress_timeout": "health.no_progress_seconds",
    "start_timeout": "health.start_seconds",
    "grace_period": "health.grace_seconds",
    "unattended_timeout": "health.unattended_seconds",
    "active_deadline": "active_deadline_seconds",
    "cleanup": "cleanup",
    "scaling": "scaling",
    "env": "env",
    "secrets": "secrets",
}

_NUMBER = re.compile(r"\s*(\d+)(\.\d+)?\s*")
_COUNTS = ("workers", "min_workers", "max_workers")
_SLUG = re.compile(r"[^A-Za-z0-9._=-]+")


def build_spec(parameters: Mapping[str, Any], *, name: str) -> RunSpec:
    """The specification that these parameters of an operator describe; None means the specification's default.

    Args:
        parameters: by the names in PATHS, rendered.
        name: of the run.

    Raises:
        SpecError: with every problem, each under the name of its parameter.
    """
    plain: dict[str, Any] = {"name": name}
    for parameter, path in PATHS.items():
        value = _plain(parameter, parameters.get(parameter))
        if value is not None:
            *parents, last = path.split(".")
            place = plain
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
    try:
        return RunSpec.from_dict(plain)
    except SpecError as error:
        raise SpecError(*(Problem(_parameter(p.path), p.given, p.allowed) for p in error.problems)) from None


def is_templated(value: object) -> bool:
    """Whether Airflow may still replace something in it: a Jinja expression, the output of another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_templated, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(is_templated, value))
    return not (value is None or isinstance(value, int | float | timedelta | PurePath))


def slug(text: str) -> str:
    """One part of a run URI or of a name: legal everywhere, and different for different texts."""
    kept = _SLUG.sub("-", text).strip("-.")[:100].rstrip("-.")
    if kept == text:
        return kept
    return f"{kept or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _plain(parameter: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, PurePath):
        return str(value)
    if parameter == "command" and isinstance(value, list | tuple):
        return [str(word) if isinstance(word, int | float | PurePath) else word for word in value]
    if parameter == "command" and isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise SpecError(
                Problem("command", value, f"a line as one would type it in a shell ({error})")
            ) from None
    if parameter in _COUNTS and isinstance(value, str) and (number := _NUMBER.fullmatch(value)):
        return float(value) if number[2] else int(value)  # Jinja renders text
    return value


def _parameter(path: str) -> str:
    """The operator's name for a path of the specification."""
    for parameter, own in PATHS.items():
        if path == own or path.startswith(f"{own}."):
            return parameter + path[len(own) :]
    return path
