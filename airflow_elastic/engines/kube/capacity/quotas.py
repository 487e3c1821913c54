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
    """How many more such pods a ResourceQuota allows; None if it limits none of their resources, or has scopes.

    Args:
        quota: the ResourceQuota.
        pod: the requests of one pod.
        limits: its limits.
    """
    spec, status = quota.get("spec") or {}, quota.get("status") or {}
    if spec.get("scopes") or spec.get("scopeSelector"):
        return None
    asked: dict[str, Decimal] = {f"requests.{name}": amount for name, amount in pod.items()}
    asked |= {name: pod[name] for name in _PLAIN if name in pod}
    asked |= {f"limits.{name}": amount for name, amount in limits.items()}
    asked |= dict.fromkeys(_PODS, Decimal(1))
    hard = amounts(status.get("hard") or spec.get("hard") or {})
    each = {name: asked[name] for name in hard if name in asked}
    return copies(left(hard, [amounts(status.get("used") or {})]), each) if each else None
