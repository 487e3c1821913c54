"""Which checkpoints to keep. The newest ones always stay: a run must have something to go on from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_elastic.spec.checkpoint import CheckpointPolicy


def to_remove(
    saved: Mapping[int, Mapping[str, float]], policy: CheckpointPolicy, pinned: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints can be removed, oldest first.

    Args:
        saved: metrics of the committed checkpoints, by step.
        policy: which checkpoints to keep.
        pinned: steps that somebody refers to.
    """
    steps = sorted(saved)
    wanted = {*steps[-policy.keep_last :], *pinned}
    if policy.keep_every_steps is not None:
        # The first save in each interval: saves that came due while another one was being written were skipped.
        firsts: dict[int, int] = {}
        for step in steps:
            firsts.setdefault(step // policy.keep_every_steps, step)
        wanted.update(step for interval, step in firsts.items() if interval)
    if policy.keep_best is not None:
        mode, name = policy.keep_best.split()
        known = [step for step in steps if not math.isnan(saved[step].get(name, math.nan))]
        if known:
            # The first of equal ones: a metric is repeated with later saves until it is measured again.
            best = min if mode == "min" else max
            wanted.add(best(known, key=lambda step: saved[step][name]))
    return [step for step in steps if step not in wanted]
