"""A loop over epochs: once for each, from the one that the run stands in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from airflow_elastic.runtime.arguments import whole_number
from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from airflow_elastic.runtime.data.share import DataShare
    from airflow_elastic.runtime.session.resume import Resume
    from airflow_elastic.runtime.session.save_schedule import SaveSchedule


def epochs_left(
    number: int, feed: DataShare, going_on: Resume, saves: SaveSchedule, steps: Callable[[], int]
) -> Iterator[int]:
    """Yield the epochs of a training that are left of so many.

    The body belongs to its epoch: what a checkpoint holds that was saved at the end of it is not done again. So a save
    that falls due with the last step waits for that end. Where ranks have to end at that step nobody waits, and the
    checkpoint stands in the epoch still, with nothing left to give: then the body is gone through once more, to do what
    was not done.

    Args:
        number: epochs in all.
        feed: gives what is in them, and knows where the run stands.
        going_on: has what was loaded as it was saved, when an epoch begins.
        saves: what has waited for the end of an epoch.
        steps: tells how many steps the run has done.

    Raises:
        InvalidInput: such a loop is under way.
    """
    number = whole_number("epochs", number, 0, "run.epochs")
    if feed.epoch is not None:
        raise InvalidInput(
            f"run.epochs: given within a loop over run.epochs, which is at epoch {feed.epoch}; allowed: one after the "
            "other"
        )
    return _epochs_left(number, feed, going_on, saves, steps)


def _epochs_left(
    number: int, feed: DataShare, going_on: Resume, saves: SaveSchedule, steps: Callable[[], int]
) -> Iterator[int]:
    going_on.prepare()
    if not feed.passes:
        feed.epochs = number
        try:
            while (epoch := feed.position.epoch) < number:
                if not feed.position.offset:
                    going_on.begin()
                feed.epoch = epoch
                yield epoch
                feed.close(epoch)
                if not (feed.within and epoch + 1 >= number):  # the end of a phase is the better moment
                    saves.end_of_epoch(steps())
        finally:
            if feed.at_end and feed.epoch is not None:  # left by a break, behind the last step of an epoch
                feed.close(feed.epoch)
                saves.forget()
            feed.epoch = None
    going_on.begin()
