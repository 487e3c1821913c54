"""The loop over epochs, from the run's current epoch on."""

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
    number: int, feed: DataShare, resume: Resume, saves: SaveSchedule, steps: Callable[[], int]
) -> Iterator[int]:
    """Yield the epochs of a training that are left.

    The loop body belongs to its epoch. A save that is due at the epoch's last step waits for the end of the body, so a
    restart does not repeat the body. If ranks must end at that step, the save cannot wait. Its checkpoint is then still
    in the epoch, with no data left. After a restart the body runs once more, without data, to do what was not done.

    Args:
        number: epochs in all.
        feed: gives the data of the epochs, and knows the run's position.
        resume: puts the loaded state back when an epoch begins.
        saves: has the saves that wait for the end of an epoch.
        steps: returns how many steps the run has done.

    Raises:
        InvalidInput: another such loop is running.
    """
    number = whole_number("epochs", number, 0, "run.epochs")
    if feed.epoch is not None:
        raise InvalidInput(
            f"run.epochs: called within a loop over run.epochs, at epoch {feed.epoch}; allowed: one loop after the "
            "other"
        )
    return _epochs_left(number, feed, resume, saves, steps)


def _epochs_left(
    number: int, feed: DataShare, resume: Resume, saves: SaveSchedule, steps: Callable[[], int]
) -> Iterator[int]:
    resume.prepare()
    if not feed.passes:
        feed.epochs = number
        try:
            while (epoch := feed.position.epoch) < number and not feed.ends_early:
                if not feed.position.offset:
                    resume.begin()
                feed.epoch = epoch
                yield epoch
                feed.close(epoch)
                if not (feed.within and epoch + 1 >= number):  # else the save at the end of the phase follows
                    saves.end_of_epoch(steps())
        finally:
            if feed.at_end and feed.epoch is not None:  # left by a break, after the last step of an epoch
                feed.close(feed.epoch)
                saves.forget()
            feed.epoch = None
    resume.begin()
