"""The forms of the values of pods and jobs that are read here, as tables; and a reader that checks them all.

A reader returns the value as Kubernetes takes it. A field that is null counts as left out. A number without a fraction
is an integer. Fields that are in no table may hold any JSON value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from airflow_elastic.engines import quantities
from airflow_elastic.spec.errors import ABSENT, Problem

Reader = Callable[[Any, str, list[Problem]], Any]


def text(value: Any, path: str, problems: list[Problem]) -> Any:
    """Text."""
    if not isinstance(value, str):
        quoted = isinstance(value, bool | int | float)
        problems.append(Problem(path, value, "text: put it into quotes" if quoted else "text"))
    return value


def integer(value: Any, path: str, problems: list[Problem]) -> Any:
    """An integer; YAML may write it as `2.0` or `1e3`."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        problems.append(Problem(path, value, "an integer" + (", without quotes" if _digits(value) else "")))
    return value


def count(value: Any, path: str, problems: list[Problem]) -> Any:
    """An integer, at least 0."""
    before = len(problems)
    value = integer(value, path, problems)
    if len(problems) == before and value < 0:
        problems.append(Problem(path, value, "an integer, at least 0"))
    return value


def boolean(value: Any, path: str, problems: list[Problem]) -> Any:
    """True or false."""
    if not isinstance(value, bool):
        problems.append(Problem(path, value, "true or false, without quotes"))
    return value


def number_or_text(value: Any, path: str, problems: list[Problem]) -> Any:
    """A number or text, as numbers of ranks may be."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        problems.append(Problem(path, value, "a number, or text"))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def amount(value: Any, path: str, problems: list[Problem]) -> Any:
    """A quantity, as text or as a number."""
    known = isinstance(value, str | int | float) and not isinstance(value, bool)
    if not known or not quantities.is_quantity(quantities.written(value)):
        problems.append(Problem(path, value, f"{quantities.ALLOWED}, not below 0"))
    return value


def anything(value: Any, path: str, problems: list[Problem]) -> Any:
    """Any JSON value, with text as keys of mappings; without fields that are null."""
    if isinstance(value, Mapping):
        return _fields(value, path, problems, {})
    if isinstance(value, list | tuple):
        return _items(value, path, problems, anything)
    number = isinstance(value, int | float) and math.isfinite(value)
    if not (number or isinstance(value, str)):
        problems.append(Problem(path, value, "text, a finite number, true, false, a list or a mapping"))
    return value


def no_template(value: Any, path: str, problems: list[Problem]) -> Any:
    """Containers that a pod gets while it runs; not allowed."""
    if value != []:
        allowed = "none: kubectl debug adds them to a pod that runs, and Kubernetes takes none in a template"
        problems.append(Problem(path, len(value) if isinstance(value, list | tuple) else value, allowed))
    return value


def list_of(inner: Reader) -> Reader:
    """A list."""

    def read(value: Any, path: str, problems: list[Problem]) -> Any:
        if not isinstance(value, list | tuple):
            problems.append(Problem(path, value, "a list"))
            return value
        return _items(value, path, problems, inner)

    return read


def map_of(inner: Reader, nothing: Any = None) -> Reader:
    """A mapping with any keys. A value that is null is `nothing`, or left out."""

    def read(value: Any, path: str, problems: list[Problem]) -> Any:
        if not isinstance(value, Mapping):
            problems.append(Problem(path, value, "a mapping"))
            return value
        filled = {key: nothing if one is None else one for key, one in value.items()}
        return _fields(filled, path, problems, dict.fromkeys(filled, inner))

    return read


def fields(known: Mapping[str, Reader], *required: str) -> Reader:
    """A mapping with known keys; some of them are required."""

    def read(value: Any, path: str, problems: list[Problem]) -> Any:
        if not isinstance(value, Mapping):
            problems.append(Problem(path, value, "a mapping"))
            return value
        for name in required:
            if value.get(name) is None:
                problems.append(Problem(_below(path, name), ABSENT, "this field is required"))
        return _fields(value, path, problems, known)

    return read


def _fields(
    value: Mapping[Any, Any], path: str, problems: list[Problem], known: Mapping[str, Reader]
) -> dict[str, Any]:
    read = {}
    for key, one in value.items():
        if not isinstance(key, str):
            problems.append(Problem(_below(path, key), ABSENT, f"the key {key!r} must be text"))
        elif one is not None:
            read[key] = known.get(key, anything)(one, _below(path, key), problems)
    return read


def _items(
    value: list[Any] | tuple[Any, ...], path: str, problems: list[Problem], inner: Reader
) -> list[Any]:
    return [inner(one, _below(path, i), problems) for i, one in enumerate(value)]


def _below(path: str, key: object) -> str:
    return f"{path}.{key}".lstrip(".")


def _digits(value: object) -> bool:
    return isinstance(value, str) and value.lstrip("+-").isdecimal()


# -- pods --------------------------------------------------------------------------------------------------------------

words = map_of(text, nothing="")
_any_fields = fields({})
some = list_of(_any_fields)
metadata = fields(
    {"labels": words, "annotations": words, "name": text, "generateName": text, "namespace": text}
)
resources = fields({"limits": map_of(amount), "requests": map_of(amount)})
env = list_of(fields({"name": text, "value": text, "valueFrom": _any_fields}, "name"))
container = fields(
    {
        "name": text,
        "image": text,
        "imagePullPolicy": text,
        "command": list_of(text),
        "args": list_of(text),
        "workingDir": text,
        "env": env,
        "envFrom": some,
        "resources": resources,
        "ports": list_of(fields({"containerPort": integer, "protocol": text}, "containerPort")),
        "volumeMounts": list_of(fields({"name": text, "mountPath": text}, "mountPath")),
        "volumeDevices": list_of(fields({"name": text, "devicePath": text}, "devicePath")),
        "securityContext": _any_fields,
        "startupProbe": _any_fields,
        "readinessProbe": _any_fields,
        "livenessProbe": _any_fields,
        "lifecycle": _any_fields,
        "stdin": boolean,
        "tty": boolean,
    }
)
_named = list_of(fields({"name": text}, "name"))
_expressions = fields({"matchExpressions": some, "matchFields": some})
affinity = fields(
    {
        "nodeAffinity": fields(
            {
                "requiredDuringSchedulingIgnoredDuringExecution": fields(
                    {"nodeSelectorTerms": list_of(_expressions)}
                ),
                "preferredDuringSchedulingIgnoredDuringExecution": some,
            }
        ),
        **{
            kind: fields(
                {
                    "requiredDuringSchedulingIgnoredDuringExecution": some,
                    "preferredDuringSchedulingIgnoredDuringExecution": some,
                }
            )
            for kind in ("podAffinity", "podAntiAffinity")
        },
    }
)
pod = fields(
    {
        "containers": list_of(container),
        "initContainers": list_of(container),
        "ephemeralContainers": no_template,
        "volumes": _named,
        "nodeSelector": words,
        "tolerations": some,
        "affinity": affinity,
        "serviceAccountName": text,
        "schedulerName": text,
        "restartPolicy": text,
        "priorityClassName": text,
        "priority": integer,
        "preemptionPolicy": text,
        "terminationGracePeriodSeconds": integer,
        **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "hostUsers", "setHostnameAsFQDN"), boolean),
        "automountServiceAccountToken": boolean,
        "enableServiceLinks": boolean,
        "shareProcessNamespace": boolean,
        "schedulingGates": _named,
        "resourceClaims": _named,
        "resources": resources,
        "os": fields({"name": text}, "name"),
        "imagePullSecrets": list_of(fields({"name": text})),
        "hostAliases": list_of(fields({"ip": text}, "ip")),
        "topologySpreadConstraints": list_of(fields({"topologyKey": text}, "topologyKey")),
        "securityContext": _any_fields,
    }
)
template = fields({"metadata": metadata, "spec": pod})
