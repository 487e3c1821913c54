"""Make a run specification from an operator's parameters."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import PurePath
from typing import Any

from airflow_elastic.adapters import plugins
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.core.scaling.check import check as check_policy
from airflow_elastic.engines import api as engines
from airflow_elastic.launchers import api as launchers
from airflow_elastic.spec.errors import ABSENT, InvalidInput, Problem, SpecError
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.validation import finite_positive

#: The path in a run specification, by parameter of the operator.
PATHS = {
    "command": "command",
    "workers": "workers.count",
    "min_workers": "workers.min",
    "max_workers": "workers.max",
    "procs_per_worker": "workers.procs",
    "node_unit": "workers.node_unit",
    "standby_workers": "workers.standby",
    "worker_resources": "workers.resources",
    "launcher": "launcher",
    "launcher_options": "launcher_options",
    "engine": "engine",
    "engine_options": "engine_options",
    "working_dir": "working_dir",
    "checkpoint_every_steps": "checkpoint.every_steps",
    "checkpoint_every_seconds": "checkpoint.every_seconds",
    "keep_checkpoints": "checkpoint.keep_last",
    "checkpoint": "checkpoint",  # after the fields of it that have parameters of their own
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
    "brain": "brain",
    "env": "env",
    "secrets": "secrets",
    "tensorboard": "tensorboard",
    "start_from": "start_from",
    "early_stop": "early_stop",
}

#: The parameter of the operator, by path in a run specification.
PARAMETERS = {path: parameter for parameter, path in PATHS.items()}

#: Shortest interval between two looks; a shorter one would keep a triggerer busy with one run.
LEAST_POLL_SECONDS = 0.01

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_NUMBER = re.compile(r"\s*(\d{1,30})(\.\d{1,30})?\s*")
_COUNTS = ("workers", "min_workers", "max_workers")
_SLUG = re.compile(r"[^A-Za-z0-9._=-]+")


def earliest(*times: Any) -> Any:
    """The shortest of some times, each in seconds or a timedelta. None values do not count; without others it is None.

    A value of another type is returned as it is: the specification then says what is wrong with it.
    """
    seconds = [one.total_seconds() if isinstance(one, timedelta) else one for one in times if one is not None]
    wrong = [one for one in seconds if not isinstance(one, int | float)]
    return wrong[0] if wrong else min(seconds, default=None)


def build_spec(parameters: Mapping[str, Any], *, name: str) -> RunSpec:
    """The specification that these parameters of an operator describe; None means the specification's default.

    Args:
        parameters: rendered values, by the names in PATHS.
        name: name of the run.

    Raises:
        SpecError: lists every problem, each under the name of its parameter.
    """
    plain: dict[str, Any] = {"name": name}
    problems: list[Problem] = []
    for parameter, path in PATHS.items():
        try:
            value = _plain(parameter, parameters.get(parameter))
        except SpecError as error:
            problems += error.problems
            value = ["?"]  # so the other parameters are checked too
        if parameter == "checkpoint" and isinstance(value, Mapping):
            place = plain.setdefault("checkpoint", {})
            twice = sorted(place.keys() & value.keys())
            allowed = "only fields that no other parameter sets"
            problems += [Problem(f"checkpoint.{key}", value[key], allowed) for key in twice]
            place.update(value)
        elif parameter == "checkpoint_every_seconds" and value == "auto":
            plain.setdefault("checkpoint", {})["auto_interval"] = True
        elif value is not None:
            *parents, last = path.split(".")
            place = plain
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
    try:
        spec = RunSpec.from_dict(plain)
    except SpecError as error:
        problems += in_own_names(error).problems
    if problems:
        raise SpecError(*problems)
    return spec


def in_own_names(error: SpecError) -> SpecError:
    """The same problems, under the names of the operator's parameters."""
    return SpecError(*(p.renamed(_parameter(p.path), PARAMETERS) for p in error.problems))


def early_problems(given: Mapping[str, Any], late: Collection[str]) -> list[Problem]:
    """Problems of an operator's parameters that can be found while its DAG is parsed: no I/O, no heavy imports.

    Args:
        given: all parameters of the operator, by name.
        late: names of the parameters whose values a template or another task sets later.
    """
    fixed = {name: value for name, value in given.items() if name not in late}
    parameters = {name: fixed.get(name) for name in PATHS}
    problems: list[Problem] = []
    words = parameters["command"]
    if "command" in late:
        parameters["command"] = ["?"]
    elif isinstance(words, list | tuple):  # only here: a template may render to a number
        allowed = "text: put it in quotes"
        problems += [
            Problem(f"command.{i}", word, allowed)
            for i, word in enumerate(words)
            if isinstance(word, int | float)
        ]
    try:
        check_policy(build_spec(parameters, name="run"))
    except SpecError as error:
        problems += [problem for problem in error.problems if not (problem.across and late)]
    for name, group in (("engine", engines.GROUP), ("launcher", launchers.GROUP)):
        value = parameters[name]
        if isinstance(value, str) and value and (unknown := plugins.unknown(group, value, name)):
            problems.append(unknown)
    return problems + _own_problems(fixed)


def uri_problem(uri: object, name: str = "run_uri") -> Problem | None:
    """What is wrong with the URI of a run, without access to it. None if it is valid."""
    if not isinstance(uri, str | PurePath):
        return Problem(name, uri, "text: an absolute path, or s3://bucket/prefix")
    text = str(uri)
    try:
        open_store(text)
    except InvalidInput as error:
        return Problem(name, ABSENT, str(error))
    if text.startswith(("/", "~")) or _SCHEME.match(text):
        return None
    return Problem(
        name,
        text,
        "an absolute path, or s3://bucket/prefix: a relative path means another folder in each part of Airflow",
    )


def interval_problem(name: str, given: Any) -> Problem | None:
    """What is wrong with the interval between two looks at a run. None if it is valid."""
    seconds = _plain(name, given)
    if finite_positive.broken(seconds) or seconds < LEAST_POLL_SECONDS:
        allowed = f"seconds, a finite number of at least {LEAST_POLL_SECONDS}, or a timedelta"
        return Problem(name, given, finite_positive.too_large(seconds) or allowed)
    return None


def _own_problems(fixed: Mapping[str, Any]) -> list[Problem]:
    """Problems of parameters that are not part of a run specification."""
    problems = []
    if fixed.get("run_uri") is not None:
        problems.append(uri_problem(fixed["run_uri"]))
    if "elastic_conn_id" in fixed and not _is_text(fixed["elastic_conn_id"]):
        problems.append(Problem("elastic_conn_id", fixed["elastic_conn_id"], "the id of a connection"))
    if fixed.get("aws_conn_id") is not None and not _is_text(fixed["aws_conn_id"]):
        problems.append(Problem("aws_conn_id", fixed["aws_conn_id"], "the id of a connection, or None"))
    if not isinstance(fixed["deferrable"], bool):
        problems.append(Problem("deferrable", fixed["deferrable"], "True or False"))
    problems.append(interval_problem("poll_interval", fixed["poll_interval"]))
    return [problem for problem in problems if problem is not None]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def is_templated(value: object) -> bool:
    """Whether Airflow may replace a part of it later: a Jinja expression, or the output of another task."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, Mapping):
        return any(map(is_templated, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(is_templated, value))
    return not (value is None or isinstance(value, int | float | timedelta | PurePath))


def is_missing(value: object) -> bool:
    """Whether a template has rendered to nothing: the task that should push its XCom has pushed none."""
    return value in (None, "", "None")


def slug(text: str) -> str:
    """One part of a run URI or a name, with characters that are valid everywhere. Different texts stay different."""
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
            raise SpecError(Problem("command", value, f"a line as in a shell ({error})")) from None
    if parameter == "start_from" and isinstance(value, Mapping):
        step = value.get("step")  # Jinja renders text here, too
        whole = isinstance(step, str) and step.strip().isdecimal()
        return {**value, "step": int(str(step))} if whole else dict(value)
    if parameter in _COUNTS and isinstance(value, str) and (number := _NUMBER.fullmatch(value)):
        return float(value) if number[2] else int(value)  # Jinja renders text
    return value


def _parameter(path: str) -> str:
    """The operator's name for a path of the specification."""
    for parameter, own in PATHS.items():
        if path == own or path.startswith(f"{own}."):
            return parameter + path[len(own) :]
    return path
