"""When a run saves, and what of it stays."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_elastic.spec.validation import Checks, Rule, finite_positive, positive_int

_best = Rule(
    lambda value: isinstance(value, str) and re.fullmatch(r"(min|max) \S+", value) is not None,
    "`min` or `max` and the name of a metric, as one text, e.g. `min val_loss`",
)

_folder = Rule(
    lambda value: isinstance(value, str) and value.startswith("/") and ".." not in value.split("/"),
    "an absolute path without `..`, e.g. `/mnt/scratch`",
)


#: A worker may have come further than another one, by a state that is for the disk alone and by one that is on its way
#: to storage.
_DISK_KEEP = 3
_disk_keep = positive_int._replace(
    holds=lambda value: type(value) is int and value >= _DISK_KEEP,
    allowed=f"an integer, at least {_DISK_KEEP}",
)


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When the runtime saves, and how many checkpoints stay.

    Attributes:
        every_steps: save after every so many optimizer steps. Default: not by steps.
        every_seconds: save when the newest checkpoint is so many seconds old. Default: 300, without `every_steps`.
        memory_every_steps: in between, copy the state into the agent's memory after every so many steps. It is written
            when a rank dies or workers have to end, and not before, and training goes on from there where all workers
            have it. Default: not in between.
        buddies: each worker keeps in its memory what one of another `workers.node_unit` has staged, and writes it where
            that one is lost: a lost node costs what was done since the newest state in memory, and not in storage.
            Whoever comes in its place, while the others stay (engines `local` and `job`), reads the state from their
            memory, and not from storage.
            Takes twice a worker's share of the state, in memory (with DDP: the state by the number of workers); and
            that share goes over the network each time. With the launcher `torchrun`, and more workers than one unit,
            which is best the workers of one machine: those of one unit never keep each other's.
        disk: a folder on the disk of each worker's machine, there already, in which agents keep what is saved, too.
            What they lose with their memory, as all of them die at once or their machines are started anew, the next
            attempt finds there. A run does not begin where no worker can use it. Takes `disk_keep_last` + 1 times a
            worker's share of the state. With the launcher
            `torchrun`; on a cluster, a volume of the node's has to be mounted there: an `emptyDir` goes with its pod.
        disk_every_steps: in between, save to that disk after every so many steps, and not to storage.
        disk_keep_last: states to keep there. Three at the least: one worker may have come further than another.
        auto_interval: save as often as is best for what a save costs and how often the run fails, as measured; then
            `every_seconds` is the longest interval, by default an hour. Of a run that is new a failure in six hours is
            believed, and what is measured outweighs that with time. Rank 0 logs the interval and its reason.
        overlap: copy weights and optimizer states while the next forward and backward passes go on, and not before
            them: for scripts that change these nowhere but in `optimizer.step()`, which waits for the copy.
        account_samples: keep, with each save, which samples every rank has consumed: `airflow-elastic verify --samples`
            proves from that that each counts once. For scripts that use `loader`.
        keep_last: committed checkpoints to keep; older ones are removed after a newer one is committed. The one stays,
            too, that was read whole last, by ranks that went on from it: what is newer has never been.
        keep_every_steps: of the older ones, the first at or after each multiple of so many steps stays too. Default:
            none.
        keep_best: the one with the lowest or highest value of a metric stays too: `min` or `max`, and a name that the
            script gives to `step`, or `loss`; e.g. `min val_loss`. What is given to `finish` alone counts where the
            last step was not saved before: a checkpoint stays what it was committed as. Default: none.
    """

    every_steps: int | None = None
    every_seconds: float | None = None
    memory_every_steps: int | None = None
    buddies: bool = False
    disk: str | None = None
    disk_every_steps: int | None = None
    disk_keep_last: int = _DISK_KEEP
    auto_interval: bool = False
    overlap: bool = False
    account_samples: bool = False
    keep_last: int = 3
    keep_every_steps: int | None = None
    keep_best: str | None = None

    def __post_init__(self) -> None:
        with Checks() as check:
            if self.every_steps is not None:
                check("every_steps", self.every_steps, positive_int)
            if self.every_seconds is not None:
                check("every_seconds", self.every_seconds, finite_positive)
            if self.memory_every_steps is not None:
                check("memory_every_steps", self.memory_every_steps, positive_int)
            if self.disk is not None:
                check("disk", self.disk, _folder)
            if self.disk_every_steps is not None:
                check("disk_every_steps", self.disk_every_steps, positive_int)
                check.that(
                    self.disk is not None,
                    "disk_every_steps",
                    self.disk_every_steps,
                    "none without checkpoint.disk, the folder to save to",
                    across=True,
                )
            check("disk_keep_last", self.disk_keep_last, _disk_keep)
            check("keep_last", self.keep_last, positive_int)
            if self.keep_every_steps is not None:
                check("keep_every_steps", self.keep_every_steps, positive_int)
            if self.keep_best is not None:
                check("keep_best", self.keep_best, _best)

    @property
    def seconds(self) -> float | None:
        """How old the newest checkpoint may be; None where steps alone decide."""
        if self.every_seconds is None and self.every_steps is None:
            return 300.0
        return self.every_seconds
