"""How a specification writes down scaling, and which of it cannot go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_elastic.spec.errors import ABSENT, Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.spec.scaling.policy import ScalingPolicy
    from airflow_elastic.spec.scaling.workers import Workers

#: The fields of a specification, by the keys below `scaling`.
_FIELDS = {"steps": "scaling", "policy": "scaling_policy"}


def unfolded(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same plain values, with a mapping below `scaling` as two fields: planned steps, and the policy.

    Raises:
        SpecError: the mapping has other keys, or the policy is given twice.
    """
    given = data.get("scaling")
    if not isinstance(given, Mapping):
        if given is not None and not isinstance(given, list | tuple):
            raise SpecError(Problem("scaling", given, "a mapping with `policy`, or a list of planned steps"))
        for i, step in enumerate(given or ()):
            if isinstance(step, Mapping) and "policy" in step:
                why = "this is a list of planned steps; for both write a mapping with `policy` and `steps`"
                raise SpecError(Problem(f"scaling.{i}.policy", ABSENT, why))
        return data
    if unknown := [key for key in given if key not in _FIELDS]:
        why = "there is no such field; rules are fields of scaling.policy, and planned steps are in scaling.steps"
        raise SpecError(*(Problem(f"scaling.{key}", ABSENT, why) for key in unknown))
    if "policy" in given and data.get("scaling_policy") is not None:
        raise SpecError(Problem("scaling.policy", given["policy"], "one policy: scaling_policy has another"))
    rest = {key: value for key, value in data.items() if key != "scaling"}
    return {**rest, **{_FIELDS[key]: value for key, value in given.items() if value is not None}}


def as_written(error: SpecError, data: object) -> SpecError:
    """The same problems, below the keys that `unfolded` has taken the fields from."""
    if not (isinstance(data, Mapping) and isinstance(data.get("scaling"), Mapping)):
        return error
    keys = {field: f"scaling.{key}" for key, field in _FIELDS.items()}
    parts = ((problem, *problem.path.partition(".")) for problem in error.problems)
    return SpecError(*(p.at(f"{keys.get(first, first)}{dot}{rest}") for p, first, dot, rest in parts))


def sizes(policy: ScalingPolicy, workers: Workers) -> tuple[int, ...]:
    """The numbers of workers that a policy may choose, ascending."""
    if policy.sizes:
        return tuple(sorted({size for size in policy.sizes if workers.permits(size)}))
    least, most = workers.at_least, workers.at_most
    return tuple(range(least, most + 1, policy.increment or workers.node_unit))


def contradictions(policy: ScalingPolicy, workers: Workers) -> Iterator[tuple[str, object, str]]:
    """The parts of a policy that cannot go with these workers: the path, the given value, the allowed ones."""
    if workers.at_least == workers.at_most:
        both = f"workers.min and workers.max are both {workers.at_least}, so there is nothing to choose"
        yield "", ABSENT, f"{both}; lower workers.min or raise workers.max"
        return
    for i, size in enumerate(policy.sizes):
        if not workers.permits(size):
            yield f"sizes.{i}", size, workers.allowed()
    if policy.increment is not None and policy.increment % workers.node_unit:
        yield "increment", policy.increment, f"a multiple of workers.node_unit, {workers.node_unit}"
    possible = sizes(policy, workers)
    if len(possible) < 2:
        field = "sizes" if policy.sizes else "increment"
        text = f"at least two sizes from {workers.at_least} to {workers.at_most} to choose from"
        yield field, list(possible), text
    for i, window in enumerate(policy.windows):
        if window.workers not in possible:
            yield f"windows.{i}.workers", window.workers, f"one of {', '.join(map(str, possible))}"
    free = policy.capacity.leave_free if policy.capacity else 0
    if free >= workers.at_most:
        yield (
            "capacity.leave_free",
            free,
            f"fewer than workers.max, {workers.at_most}: the run would never grow",
        )
