"""Which checkpoints stay. The newest ones always do: a run must have something to go on from."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_elastic.spec.checkpoint import CheckpointPolicy


def superfluous(
    saved: Mapping[int, Mapping[str, float]], policy: CheckpointPolicy, pinned: Collection[int] = ()
) -> list[int]:
    """The steps whose checkpoints nobody wants any more, oldest first.

    Args:
        saved: metrics of the committed checkpoints, by step.
        policy: what is to stay.
        pinned: steps that somebody refers to.
    """
    steps = sorted(saved)
    wanted = {*steps[-policy.keep_last :], *pinned}
    if policy.keep_every_steps is not None:
        # The first of each interval: saves that came due while another one was written were left out.
        firsts: dict[int, int] = {}
        for step in steps:
            firsts.setdefault(step // policy.keep_every_steps, step)
        wanted.update(step for interval, step in firsts.items() if interval)
    if policy.keep_best is not None:
        mode, name = policy.keep_best.split()
        known = [step for step in steps if not math.isnan(saved[step].get(name, math.nan))]
        if known:
            # Of equal ones the first: what was measured then is told with the saves that follow, too.
            best = min if mode == "min" else max
            wanted.add(best(known, key=lambda step: saved[step][name]))
    return [step for step in steps if step not in wanted]
