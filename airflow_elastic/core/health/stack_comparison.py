"""Finds the rank that holds up the others in a hang, by a comparison of the ranks' stacks. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.spec.stacks import Stack

if TYPE_CHECKING:
    from airflow_elastic.spec.stacks import RankStack

#: A rank that waits for others has one of these frames in its stack. They are collectives, waits of our runtime, and
#: backward passes whose gradients DDP reduces.
_WAITS = re.compile(
    r"/torch/distributed/|/torch/nn/parallel/distributed\.py:|\bin (_engine_run_backward|synchronize)$"
    r"|/airflow_elastic/runtime/collectives/(process_group|agreement)\.py:"
)
_INNERMOST = 12

#: Files that are not the script's own code.
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|<frozen |<string>|/airflow_elastic/")

#: The most groups of ranks in a sentence, and the most frames of each.
GROUPS, FRAMES = 8, 25


def grouped(told: Iterable[RankStack]) -> tuple[Stack, ...]:
    """Ranks at the same place, grouped; first the groups that stand elsewhere than the others.

    These are the ranks that do not wait, if others wait in a collective; else a minority.
    """
    groups: dict[tuple[str, ...], list[int]] = {}
    for one in told:
        groups.setdefault(one.frames[:FRAMES], []).append(one.rank)
    stacks = [Stack(tuple(sorted(ranks)), frames) for frames, ranks in groups.items()]
    apart = _elsewhere([stack for stack in stacks if stack.frames])
    marked = [replace(stack, elsewhere=stack in apart) for stack in stacks]
    return tuple(sorted(marked, key=lambda stack: (not stack.elsewhere, stack.ranks))[:GROUPS])


def _elsewhere(stacks: Sequence[Stack]) -> list[Stack]:
    if len(stacks) < 2:
        return []
    busy = [stack for stack in stacks if not _waits(stack)]
    if busy and len(busy) < len(stacks):
        return busy
    most = max(stacks, key=lambda stack: len(stack.ranks))
    count = sum(len(stack.ranks) for stack in stacks)
    return [stack for stack in stacks if stack is not most] if 2 * len(most.ranks) > count else []


def _waits(stack: Stack) -> bool:
    return any(_WAITS.search(frame) for frame in stack.frames[:_INNERMOST])


def place(stack: Stack) -> str:
    """The innermost place in the script's own code: `train.py:52 in load`; in a library, if there is none."""
    if not stack.frames:
        return "at an unknown place"
    own = next((frame for frame in stack.frames if not LIBRARY.search(frame)), stack.frames[0])
    return own.rpartition("/")[2]


def told(stacks: Sequence[Stack]) -> str:
    """In half a sentence: `rank 1 stands at train.py:52 in load, ranks 0, 2 at train.py:60 in step`."""
    known = [stack for stack in stacks if stack.frames]
    if not known:
        return ""
    apart = [stack for stack in known if stack.elsewhere]
    others = [stack for stack in known if not stack.elsewhere]
    if not apart:
        places = [f"{_ranks(stack)} at {place(stack)}" for stack in known[:3]]
        return f"{', '.join(places)}{', …' if len(known) > len(places) else ''}"
    them = " and ".join(f"{_ranks(stack)} at {place(stack)}" for stack in apart[:3])
    verb = "stands" if len(apart) == 1 and len(apart[0].ranks) == 1 else "stand"
    first, _, rest = them.partition(" at ")
    return f"{first} {verb} at {rest}" + (f", {_ranks(others[0])} at {place(others[0])}" if others else "")


def rendered(stacks: Sequence[Stack]) -> str:
    """All stacks in full: each place with its ranks, the innermost frame first."""
    parts = []
    for stack in stacks:
        mark = ", elsewhere than the others" if stack.elsewhere else ""
        lines = [f"  {frame}" for frame in stack.frames] or ["  its program prints no stacks"]
        parts.append("\n".join([f"{_ranks(stack)}{mark} (most recent call first):", *lines]))
    return "\n".join(parts)


def _ranks(stack: Stack) -> str:
    numbers = ", ".join(map(str, stack.ranks[:6])) + (", …" if len(stack.ranks) > 6 else "")
    return f"rank{'' if len(stack.ranks) == 1 else 's'} {numbers}"
