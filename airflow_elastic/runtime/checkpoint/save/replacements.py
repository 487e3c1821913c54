"""What a script has replaced of what is saved, and where: which of that a restarted script replaces again. Pure."""

from __future__ import annotations

from typing import NamedTuple


class ReplacementPoint(NamedTuple):
    """Where in a training something was replaced.

    Attributes:
        phase: number of the training, or of the one that comes next.
        epoch: of a loop over `run.epochs`; None outside of one.
        steps: done in that training until then.
    """

    phase: int
    epoch: int | None
    steps: int


class Replacements:
    """Counts what comes again in an attempt.

    A restarted script comes by the same line again where that is before the training, between two, at the end of one
    that is complete, or at the top of the epoch that the run stands in. It does not come by a step that is over.

    Attributes:
        made: over all attempts, as a checkpoint has it.
    """

    def __init__(self) -> None:
        self.made: list[ReplacementPoint] = []
        self._again: list[ReplacementPoint] = []  # of these, what this attempt has come by

    def begin(self) -> None:
        """Another attempt begins, or the script restores something else."""
        self._again = []

    def repeats(self, place: ReplacementPoint, *, passes: bool) -> bool:
        """Whether what is replaced here was replaced before the checkpoint, too; it is counted then.

        Args:
            place: where the script is.
            passes: whether it passes by a training that is complete, whose loops give nothing.
        """
        left = [*self.made]
        for one in self._again:
            if one in left:
                left.remove(one)
        for one in left:
            if one.phase == place.phase and (one.epoch is None if passes else _comes_again(one, place)):
                self._again.append(one)
                return True
        return False

    def add(self, place: ReplacementPoint) -> None:
        """Something is replaced for the first time."""
        self.made = [*(one for one in self.made if not _is_over(one, place)), place]

    def expect(self, place: ReplacementPoint) -> None:
        """What is replaced here is in the checkpoint that is about to be loaded."""
        self._again.append(place)


def _comes_again(one: ReplacementPoint, place: ReplacementPoint) -> bool:
    if one.epoch is None and place.epoch is None:
        return one.steps in (0, place.steps)
    return one.epoch == place.epoch


def _is_over(one: ReplacementPoint, place: ReplacementPoint) -> bool:
    """Whether no attempt comes by it any more: it belongs to an epoch that is over."""
    if one.phase != place.phase or one.epoch is None or place.epoch is None:
        return False
    return one.epoch < place.epoch
