"""Which state goes on, of those that workers have found on their disks: all of its parts have to be there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offer:
    """One worker's part of a state, found on a disk.

    Attributes:
        by: number of the worker that has found it.
        step: optimizer steps done.
        data: the folder of the state's files, alike for all of its parts, and for no other state's.
        reason: why it was saved. One step may have been saved twice, into the same folder.
        part: number of the worker that has saved it, among those that trained.
        of: how many these were.
    """

    by: int
    step: int
    data: str
    reason: str
    part: int
    of: int


def choose(found: Iterable[Offer], newest: int) -> tuple[Offer, ...]:
    """The newest state that is there whole, and newer than storage has one; one offer for each of its parts.

    Where several workers have the same part, as they share a disk, those write it that have least to write.

    Args:
        found: by all workers.
        newest: step of the newest checkpoint in storage; -1 where there is none.

    Returns:
        In the order of the parts; nothing where there is no such state.
    """
    states: defaultdict[tuple[int, str, str, int], defaultdict[int, list[Offer]]]
    states = defaultdict(lambda: defaultdict(list))
    for one in found:
        if one.step > newest:
            states[one.step, one.data, one.reason, one.of][one.part].append(one)
    whole = [state for state, parts in states.items() if len(parts) == state[-1]]
    if not whole:
        return ()
    load: Counter[int] = Counter()
    chosen = []
    # Those first that only few have.
    for offers in sorted(states[max(whole)].values(), key=lambda each: (len(each), each[0].part)):
        one = min(offers, key=lambda offer: (load[offer.by], offer.by))
        load[one.by] += 1
        chosen.append(one)
    return tuple(sorted(chosen, key=lambda offer: offer.part))
