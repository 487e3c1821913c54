"""Which of the states on the workers' disks to restore: the newest one whose parts are all there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class StateVersion:
    """When a state was saved. A step alone does not say: later attempts and generations may repeat earlier steps."""

    attempt: int = 0
    generation: int = 0
    step: int = -1


@dataclass(frozen=True, slots=True)
class PartOnDisk:
    """One worker's part of a state, found on a disk.

    Attributes:
        by: number of the worker that found it.
        age: when it was saved.
        reason: why it was saved. One step may have been saved twice, into the same folder.
        part: number of the worker that saved it, among those that trained.
        of: how many workers trained.
    """

    by: int
    age: StateVersion
    reason: str
    part: int
    of: int


def choose(found: Iterable[PartOnDisk], newest: StateVersion, now: StateVersion) -> tuple[PartOnDisk, ...]:
    """The newest complete state that is newer than the checkpoints in storage; one offer for each of its parts.

    The state must follow the newest checkpoint in storage. A state of an earlier attempt than that checkpoint's may
    have diverged. A state that claims this generation, or a later one, is of another run.

    Several workers that share a disk may offer the same part. Then the worker that has least to write gets it.

    Args:
        found: by all workers.
        newest: of the checkpoints in storage.
        now: attempt and generation that are about to begin.

    Returns:
        The offers in the order of the parts; empty if there is no such state.
    """
    states: defaultdict[tuple[StateVersion, str, int], defaultdict[int, list[PartOnDisk]]]
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
    # Parts that only few workers have come first.
    for offers in sorted(states[max(whole)].values(), key=lambda each: (len(each), each[0].part)):
        one = min(offers, key=lambda offer: (load[offer.by], offer.by))
        load[one.by] += 1
        chosen.append(one)
    return tuple(sorted(chosen, key=lambda offer: offer.part))
