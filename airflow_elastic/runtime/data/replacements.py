"""Record where a script has replaced saved objects, to find out which it replaces again after a restart. Pure."""

from __future__ import annotations

from typing import NamedTuple


class ReplacementPoint(NamedTuple):
    """The point of a training at which an object was replaced.

    Attributes:
        phase: number of the training, or of the next one.
        epoch: in a loop over `run.epochs`; None outside of one.
        steps: that this training had done.
    """

    phase: int
    epoch: int | None
    steps: int


class Replacements:
    """Finds out which replacements an attempt repeats.

    A restarted script repeats the lines before, between and at the end of complete trainings. It also repeats those at
    the top of the current epoch, but not those of steps that are done.

    Attributes:
        made: the replacements of all attempts, as in a checkpoint.
    """

    def __init__(self) -> None:
        self.made: list[ReplacementPoint] = []
        self._again: list[ReplacementPoint] = []  # those of `made` that this attempt has repeated

    def begin(self) -> None:
        """Another attempt begins, or the script restores something else."""
        self._again = []

    def repeats(self, place: ReplacementPoint, *, passes: bool) -> bool:
        """Whether the replacement at this point repeats one from before the checkpoint. Each counts only once.

        Args:
            place: where the script is.
            passes: whether the script skips a complete training, whose loops yield nothing.
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
        """An object is replaced for the first time."""
        self.made = [*(one for one in self.made if not _is_over(one, place)), place]

    def expect(self, place: ReplacementPoint) -> None:
        """The checkpoint that will be loaded has the replacement at this point already."""
        self._again.append(place)


def _comes_again(one: ReplacementPoint, place: ReplacementPoint) -> bool:
    if one.epoch is None and place.epoch is None:
        return one.steps in (0, place.steps)
    return one.epoch == place.epoch


def _is_over(one: ReplacementPoint, place: ReplacementPoint) -> bool:
    """Whether no attempt will repeat it, because its epoch is over."""
    if one.phase != place.phase or one.epoch is None or place.epoch is None:
        return False
    return one.epoch < place.epoch
