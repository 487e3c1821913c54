"""What a pod requests of a node, as the scheduler counts it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from airflow_elastic.engines.quantities import number_of

#: Amounts by resource: `{"cpu": 0.5, "memory": 8589934592}`.
Amounts = Mapping[str, Decimal]

#: Every pod takes one of these of a node.
_PODS = "pods"


def requested(spec: Mapping[str, Any]) -> dict[str, Decimal]:
    """The requests of a pod, by its `spec`: of its containers together, or of its largest init container if larger.

    A container without a request for a resource requests its limit. Sidecars (init containers that restart) run beside
    the containers. Resources of the whole pod, and its overhead, count too.
    """
    sidecars: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for init in spec.get("initContainers") or ():
        own = _of_container(init)
        if init.get("restartPolicy") == "Always":
            sidecars = _sum((sidecars, own))
        else:
            largest = _largest(largest, _sum((sidecars, own)))
    together = _sum((sidecars, *(_of_container(one) for one in spec.get("containers") or ())))
    whole = {**_largest(largest, together), **_of_container(spec)}
    return _sum((whole, amounts(spec.get("overhead") or {}), {_PODS: Decimal(1)}))


def copies(free: Amounts, each: Amounts) -> int:
    """How many times `each` fits into `free`. At least 0."""
    counts = [
        int(max(free.get(name, Decimal(0)), Decimal(0)) // amount) for name, amount in each.items() if amount
    ]
    return min(counts, default=0)


def left(whole: Amounts, taken: Iterable[Amounts]) -> dict[str, Decimal]:
    """What is left of these amounts."""
    used = _sum(taken)
    return {name: amount - used.get(name, Decimal(0)) for name, amount in whole.items()}


def plus(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    """Both together."""
    return _sum((one, other))


def _of_container(container: Mapping[str, Any]) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    return amounts({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def amounts(quantities: Mapping[str, Any]) -> dict[str, Decimal]:
    """Quantities of Kubernetes as numbers. Raises ValueError."""
    return {name: number_of(str(amount)) for name, amount in quantities.items()}


def _sum(all_: Iterable[Amounts]) -> dict[str, Decimal]:
    whole: dict[str, Decimal] = {}
    for one in all_:
        for name, amount in one.items():
            whole[name] = whole.get(name, Decimal(0)) + amount
    return whole


def _largest(one: Amounts, other: Amounts) -> dict[str, Decimal]:
    zero = Decimal(0)
    return {name: max(one.get(name, zero), other.get(name, zero)) for name in one.keys() | other.keys()}
