"""spec.md: every field of a run's specification, out of the dataclasses and their docstrings."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

from airflow_elastic.spec import run as spec_module
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.models.start import StartFrom
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.spec.scaling import policy as policy_module
from generator.markdown import BY, code, docstring, fence, plain, table

#: A value of the right type that no rule takes, so that the specification says itself what it allows.
_WRONG: Mapping[type, object] = {int: -1, float: -1.0, str: "", bool: "?", tuple: [""], Mapping: {"": 1}}
_WORDS = {
    int: "integer",
    float: "number",
    str: "text",
    tuple: "list of text",
    Mapping: "mapping",
    bool: "true or false",
}

#: Where one wrong value does not show every rule.
_WRONG_HERE: Mapping[tuple[str, str], tuple[object, ...]] = {
    ("", "env"): ({"1x": "y"}, {"AIRFLOW_ELASTIC_X": "y"}),
    ("workers", "min"): (-1, 3, 1),
    ("workers", "max"): (-1, 1, 3),
    ("workers", "count"): (-1, 3),
    ("restart", "exit_codes"): ([0],),
    ("scaling", "at_step"): (-1, None),
}
_RIGHT: Mapping[str, Mapping[str, object]] = {
    "workers": {"count": 2, "node_unit": 2},
    "scaling": {"workers": 1, "at_step": 1},
    "secrets": {"name": "A", "source": "env", "key": "B"},
    "start_from": {"source": "/a"},
    "scaling_policy": {"capacity": {}},
    "scaling_policy.load": {"signal": "cpu", "target": 0.5},
    "scaling_policy.windows": {"start": "0 20 * * *", "end": "0 6 * * *", "workers": 1},
}

#: What the docstring says of all fields in one sentence.
_MEANINGS = {
    ("scaling", "workers"): "workers from then on.",
    ("scaling", "at_step"): "the optimizer step after which the change is asked for.",
    ("scaling", "after_seconds"): "seconds from the run's creation after which it is asked for.",
}

_SPEC_CLASSES = (
    ("", RunSpec),
    ("workers", spec_module.Workers),
    ("checkpoint", CheckpointPolicy),
    ("restart", spec_module.RestartPolicy),
    ("health", spec_module.Health),
    ("scaling", spec_module.ScaleStep),
    ("scaling_policy", policy_module.ScalingPolicy),
    ("scaling_policy.load", policy_module.LoadTarget),
    ("scaling_policy.capacity", policy_module.CapacityRule),
    ("scaling_policy.worth", policy_module.WorthRule),
    ("scaling_policy.windows", policy_module.Window),
    ("secrets", spec_module.SecretRef),
    ("start_from", StartFrom),
)


_WORDS_BEFORE = """\
The complete, fixed description of a run. It is written as YAML or JSON (`airflow-elastic run --spec`). Or it is made
from the parameters of the [operator](operator.md), or the options of [`airflow-elastic run`](cli.md#run). A field that
is left out has its default. A value that is not allowed is refused before any object is created. The error has the path
of its field, the given value and the allowed ones. A field that does not exist is refused, too. Unless stated
otherwise, an integer is at most 2^63 - 1, and a time at most 9000000000 seconds, 285 years.

"""


def spec_page() -> str:
    parts = [
        BY,
        "# The specification of a run\n\n",
        _WORDS_BEFORE,
        fence(_example_spec(), "yaml"),
        "\n",
    ]
    for path, cls in _SPEC_CLASSES:
        words, entries, _ = docstring(cls.__doc__ or "")
        listed = _is_listed(path)
        parts.append(f"## {path or 'The run'}\n\n")
        parts.append(
            f"Each entry of the list: {(words[0].lower() + words[1:]).strip()}" if listed else words.strip()
        )
        parts.append("\n\n")
        parts.append(
            table(
                ("field", "type", "default", "allowed", "meaning"),
                (_field(path, cls, field, entries) for field in dataclasses.fields(cls)),
            )
        )
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


def _example_spec() -> str:
    return """
        name: digits
        command: [train.py, --epochs, "10"]
        workers: {count: 2, min: 1, max: 4, procs: 1}
        checkpoint: {every_seconds: 60, keep_last: 3}
        restart: {policy: OnFailure, backoff_limit: 6}
        health: {no_progress_seconds: 300}
        active_deadline_seconds: 86400
        scaling:
          - {workers: 4, at_step: 1000}
        env: {OMP_NUM_THREADS: "4"}
        secrets:
          - {name: WANDB_API_KEY, source: env, key: WANDB_API_KEY}
        """


def _is_listed(path: str) -> bool:
    return path in ("scaling", "scaling_policy.load", "scaling_policy.windows", "secrets")


def _anchor(path: str) -> str:
    """The link to a section: headings lose their dots."""
    return path.replace(".", "")


def _whole(path: str, value: Any) -> dict[str, Any]:
    """A specification with this value at a path."""
    if not path:
        return value  # type: ignore[no-any-return]
    for name in reversed(path.split(".")):
        value = {name: value}
    return {"workers": {"count": 1, "max": 8}, **value} if path.startswith("scaling_policy") else value


def _field(
    path: str, cls: type, field: dataclasses.Field[Any], entries: Mapping[str, str]
) -> tuple[str, ...]:
    hint = typing.get_type_hints(cls)[field.name]
    optional = type(None) in typing.get_args(hint)
    base = next(arg for arg in typing.get_args(hint) if arg is not type(None)) if optional else hint
    nested = {c: p for p, c in _SPEC_CLASSES if p}
    inner = typing.get_args(base)[0] if typing.get_origin(base) is tuple else base
    if inner in nested:
        link = f"[{nested[inner]}](#{_anchor(nested[inner])})"
        kind = f"list of {link}" if inner is not base else link
        meaning = entries.get(field.name) or plain(docstring(inner.__doc__ or "")[0].split("\n\n")[0])
        default = "empty" if inner is not base else "none" if optional else "its defaults"
        return code(field.name), kind, default, "see there", meaning
    origin = typing.get_origin(base) or base
    kind = "list of integers" if field.name in ("exit_codes", "sizes") else _WORDS[origin]
    meaning = entries.get(field.name) or _MEANINGS[path, field.name]
    return code(field.name), kind, _default(field), _allowed(path, field.name, origin), meaning


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        if field.default in (None, ()):
            return "none"
        return code(field.default)
    return "empty" if field.default_factory is not dataclasses.MISSING else "**required**"


#: No count of workers or processes may be so large; the limit of other numbers is stated once.
_TOO_MANY = 10**9


def _allowed(path: str, name: str, origin: type) -> str:
    """What the specification says is allowed, when it is given something that is not."""
    found = []
    tries = _WRONG_HERE.get((path, name), (_WRONG[origin],))
    for wrong in (*tries, *([_TOO_MANY] if origin is int else [])):
        value: Any = {**_RIGHT.get(path, {}), name: wrong}
        if (path, name) == ("scaling", "after_seconds"):
            del value["at_step"]
        whole = _whole(path, [value] if _is_listed(path) else value)
        try:
            RunSpec.from_dict({"command": ["train.py"], **whole})
        except SpecError as error:
            found += [p.allowed for p in error.problems if name in p.path.split(".")]
    told = "; ".join(dict.fromkeys(re.sub(r", (which is )?\d+$", "", text) for text in found))
    return told.replace("a tuple of ", "") or "any"
