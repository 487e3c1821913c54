"""A page of memory that one rank and its agent share: a few numbers, written every step at the cost of a store.

Both map one file, so it outlives the rank: the last numbers of a killed rank can still be read. Each number is one
aligned 8-byte word. The processors that we run on store such a word at once.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

_WORDS: Final = 32
_SIZE: Final = _WORDS * 8

# Words that the rank writes.
ATTACHED: Final = 0  # 1: the script uses our runtime
STEP: Final = 1  # optimizer steps done since the run began
MOVED_AT: Final = 2  # when STEP last changed, epoch seconds
FIRST_STEP_AT: Final = 3  # when this rank did its first step, epoch seconds
FROM_STEP: Final = 4  # the step it was restored at
STEPPING: Final = 5  # seconds in steps
SAVING: Final = 6  # seconds the loop stood still for saves
RESTORING: Final = 7  # seconds the restore took
SAMPLES: Final = 8  # samples consumed by the run since step 0
PARKED: Final = 9  # 1: saved, and waiting to be ended
FINISHED: Final = 10  # 1: the script says that training is complete
SAVED: Final = 11  # 1 more than the newest step whose state was saved to be written to storage; 0: none was
RESTORED: Final = 28  # bytes of the checkpoint that are read so far
TO_RESTORE: Final = 29  # bytes of the checkpoint that have to be read
LEFT_OUT: Final = 31  # 1 more than the newest step whose due save was skipped, as one was still being written
VERIFIED: Final = 30  # epoch seconds when all ranks had verified a state restored from storage only; 0: not
WAITING: Final = 27  # 1: training stands still until the agent has written what was saved before; 2: `ENDING`

# And once a second:
TOTAL_STEPS: Final = 12  # steps of the whole training; 0: unknown
EPOCH: Final = 13
LOSS: Final = 14
SAMPLES_PER_SECOND: Final = 15
STEP_SECONDS: Final = 19  # mean of one step
FORWARD_SECONDS: Final = 20  # mean of one forward pass
MEMORY: Final = 21  # the most memory the process has had, bytes
LOSS_TOLD: Final = 22  # 1: LOSS is valid, and finite; 2 and more: the loss is this one of ODD_LOSSES

#: Losses that are no finite numbers: of LOSS_TOLD 2, 3 and 4.
ODD_LOSSES: Final = ("NaN", "Infinity", "-Infinity")

#: A value of WAITING: the rank must end, but cannot save yet, because its staging memory is still being read.
ENDING: Final = 2.0

# Words that the agent writes.
PARK: Final = 16  # 1: finish the step in flight, save, and wait to be ended
SAVE: Final = 17  # how many orders to save there have been

WRITING: Final = 23  # seconds that the agent took to write the newest of them

WRITTEN: Final = 24  # the newest step whose state the agent has written to storage

KEPT: Final = 18  # the newest step whose state the agent has written to storage, or has failed to

GIVEN: Final = 25  # the newest step whose state the agent has given to its buddy, or has failed to

ON_DISK: Final = 26  # the newest step whose state the agent has written to its disk, or has failed to


class Page:
    """A mapped page. `words` is indexed by the constants of this module."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.words = memoryview(self._map).cast("d")

    @classmethod
    def create(cls, path: Path) -> Page:
        """A new page, all zero."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(_SIZE))
        return cls(path)

    def close(self) -> None:
        """Unmap it. The file stays."""
        self.words.release()
        self._map.close()


def read_words(path: Path) -> memoryview[float] | None:
    """The words of a page as they are now, copied; None where there is no page."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return memoryview(data).cast("d") if len(data) == _SIZE else None
