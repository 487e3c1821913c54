"""The rule `capacity`: use free room, and give room back that others need."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_elastic.core.scaling.want import Want, at_most, workers_text
from airflow_elastic.spec.scaling.observation import Observation
from airflow_elastic.spec.scaling.policy import CapacityRule


def room(rule: CapacityRule, sizes: Sequence[int], seen: Observation) -> Want | None:
    """The most workers that there is room for; None if it is unknown."""
    capacity = seen.capacity
    if capacity is None or (capacity.free is None and not capacity.text):
        return None
    if capacity.free is None:
        return Want("capacity", seen.workers, f"the free capacity is unknown ({capacity.text})")
    left = f", {workers_text(rule.leave_free)} of it left to others" if rule.leave_free else ""
    most = at_most(sizes, seen.workers + capacity.free - rule.leave_free)
    reason = f"there is room for {capacity.free} more{left}"
    return Want("capacity", most, reason, {"free": float(capacity.free)})


def give_back(rule: CapacityRule, sizes: Sequence[int], seen: Observation) -> Want | None:
    """Fewer workers, if work of a higher priority has waited long enough and that lets it run; else None.

    Work that would not run even if this run had its fewest workers is not made room for.
    """
    capacity = seen.capacity
    if capacity is None or not rule.give_back:
        return None
    wanted, served = seen.workers, []
    for claim in sorted(capacity.claims, key=lambda one: (-one.priority, -one.seconds, one.name)):
        if claim.seconds >= rule.after_seconds and wanted - claim.workers >= sizes[0]:
            wanted -= claim.workers
            served.append(claim)
    if not served:
        return None
    names = ", ".join(claim.name for claim in served[:3]) + (" and others" if len(served) > 3 else "")
    longest = max(claim.seconds for claim in served)
    room = f"the room of {workers_text(seen.workers - wanted)}"
    reason = f"others come first and have needed {room} for {longest:.0f} s: {names}"
    return Want("capacity", at_most(sizes, wanted), reason, {"claimed": float(seen.workers - wanted)})
