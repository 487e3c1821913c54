"""Which state goes on, of those that workers have found on their disks: all of its parts have to be there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Age:
    """When a state was saved: a later attempt, or generation, may have begun again at an earlier step."""

    attempt: int = 0
    generation: int = 0
    step: int = -1


@dataclass(frozen=True, slots=True)
class Offer:
    """One worker's part of a state, found on a disk.

    Attributes:
        by: number of the worker that has found it.
        age: when it was saved.
        reason: why. One step may have been saved twice, into the same folder.
        part: number of the worker that has saved it, among those that trained.
        of: how many these were.
    """

    by: int
    age: Age
    reason: str
    part: int
    of: int


def choose(found: Iterable[Offer], newest: Age, now: Age) -> tuple[Offer, ...]:
    """The newest state that is there whole, and newer than what storage has; one offer for each of its parts.

    It has to go on from what storage has: what was saved by an attempt before that one's may have gone another way, and
    what claims to be of this generation, or a later one, is of another run.

    Where several workers have the same part, as they share a disk, those write it that have least to write.

    Args:
        found: by all workers.
        newest: of the checkpoints in storage.
        now: attempt and generation that are about to begin.

    Returns:
        In the order of the parts; nothing where there is no such state.
    """
    states: defaultdict[tuple[Age, str, int], defaultdict[int, list[Offer]]]
    states = defaultdict(lambda: defaultdict(list))
    for one in found:
        descends = (newest.attempt, newest.generation) <= (one.age.attempt, one.age.generation)
        is_over = (one.age.attempt, one.age.generation) < (now.attempt, now.generation)
        if descends and is_over and one.age.step > newest.step and 0 <= one.part < one.of:
            states[one.age, one.reason, one.of][one.part].append(one)
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
