"""How many more workers the quotas of a namespace allow. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from airflow_elastic.engines.kube.capacity.pods import Amounts, amounts, copies, left

Object = Mapping[str, Any]

_PLAIN = ("cpu", "memory", "ephemeral-storage")
_PODS = ("pods", "count/pods")


def by_quota(quota: Object, pod: Amounts, limits: Amounts) -> int | None:
    """How many more such pods a ResourceQuota allows; None if it limits none of their resources.

    Args:
        quota: the ResourceQuota.
        pod: the requests of one pod.
        limits: its limits.
    """
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    asked: dict[str, Decimal] = {f"requests.{name}": amount for name, amount in pod.items()}
    asked |= {name: pod[name] for name in _PLAIN if name in pod}
    asked |= {f"limits.{name}": amount for name, amount in limits.items()}
    asked |= dict.fromkeys(_PODS, Decimal(1))
    hard = amounts(status.get("hard") or spec.get("hard") or {})
    each = {name: asked[name] for name in hard if name in asked}
    return copies(left(hard, [amounts(status.get("used") or {})]), each) if each else None


def applies(quota: Object, pod: Object) -> bool:
    """Whether a ResourceQuota counts a pod with this `spec`, by its scopes: all of them must hold."""
    spec = quota.get("spec") or {}
    selector = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    plain = ({"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ())
    return all(_in_scope(one, pod) for one in (*plain, *selector))


def _in_scope(scope: Mapping[str, Any], pod: Object) -> bool:
    """Whether one scope holds. Affinity between namespaces never does: workers have none by default."""
    ends = pod.get("activeDeadlineSeconds") is not None
    asks = any(
        (one.get("resources") or {}).get(part)
        for one in (*(pod.get("containers") or ()), *(pod.get("initContainers") or ()))
        for part in ("requests", "limits")
    )
    holds = {"Terminating": ends, "NotTerminating": not ends, "BestEffort": not asks, "NotBestEffort": asks}
    name, given = scope["scopeName"], pod.get("priorityClassName")
    if name != "PriorityClass":
        return holds.get(name, False)
    match scope["operator"]:
        case "In":
            return given in (scope.get("values") or ())
        case "NotIn":
            return given not in (scope.get("values") or ())
        case "Exists":
            return bool(given)
    return not given
