"""When a run saves, and which checkpoints are kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_elastic.spec.validation import Checks, Rule, finite_positive, positive_int

#: Names a metric and says which of its values is the best.
best_rule = Rule(
    lambda value: isinstance(value, str) and re.fullmatch(r"(min|max) \S+", value) is not None,
    "`min` or `max` and the name of a metric, as one text, e.g. `min val_loss`",
)

_folder = Rule(
    lambda value: isinstance(value, str) and value.startswith("/") and ".." not in value.split("/"),
    "an absolute path without `..`, e.g. `/mnt/scratch`",
)


#: The states of workers may differ by two: one that goes to the disk only, and one on its way to storage.
_DISK_KEEP = 3
_disk_keep = positive_int._replace(
    holds=lambda value: type(value) is int and value >= _DISK_KEEP,
    allowed=f"an integer, at least {_DISK_KEEP}",
)


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When the runtime saves, and how many checkpoints are kept.

    Attributes:
        every_steps: save after every so many optimizer steps. Default: not by steps.
        every_seconds: save when the newest checkpoint is so many seconds old. Default: 300, without `every_steps`.
        memory_every_steps: after every so many steps, also copy the state into the agent's memory. The agent writes it
            to storage only when a rank dies or workers have to end. Training then goes on from there, where all workers
            have it. Default: no such copies.
        buddies: each worker also keeps, in its memory, what a worker of another `workers.node_unit` has staged. If that
            worker is lost, it writes this copy to storage. A lost node then costs only the steps since the newest state
            in memory. With the engines `local` and `job` the others stay, and a replacement reads the state from their
            memory instead of from storage.
            Takes twice a worker's share of the state in memory. (With DDP a share is the state divided by the number of
            workers.) Each copy goes over the network. Needs the launcher `torchrun`, and more workers than one unit.
            Workers of one unit never keep copies for each other, so make a unit the workers of one machine.
        disk: a folder on the disk of each worker's machine. It must exist. Agents also keep there what is saved. If all
            agents die at once, or machines restart, the next attempt finds it there. A run does not begin if no worker
            can use the folder. Takes `disk_keep_last` + 1 times a worker's share of the state. Needs the launcher
            `torchrun`. On a cluster, mount a volume of the node: an `emptyDir` is removed with its pod.
        disk_every_steps: after every so many steps, also save to that disk only, and not to storage.
        disk_keep_last: states to keep there. At least 3: one worker may be ahead of another.
        auto_interval: choose the interval by what a save costs and how often the run fails, as measured. Then
            `every_seconds` is the longest interval, by default an hour. A new run is assumed to fail once in six hours;
            measurements replace this assumption over time. Rank 0 logs the interval and its reason.
        overlap: copy weights and optimizer states during the next forward and backward passes, and not before them. For
            scripts that change these only in `optimizer.step()`, which waits for the copy.
        account_samples: with each save, keep which samples every rank has consumed. `airflow-elastic verify --samples`
            then proves that each sample counts once. For scripts that use `loader`.
        keep_last: committed checkpoints to keep. Older ones are removed after a newer one is committed. The checkpoint
            that ranks last restored in full is kept too, because the newer ones have not been read yet.
        keep_every_steps: of the older ones, also keep the first at or after each multiple of so many steps. Default:
            none.
        keep_best: also keep the checkpoint with the lowest or highest value of a metric: `min` or `max` and a name,
            e.g. `min val_loss`. The name is `loss`, or one that the script gives to `step`. Metrics that are given only
            to `finish` count if the last step was not saved before: a committed checkpoint never changes. Default:
            none.
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
                check("keep_best", self.keep_best, best_rule)

    @property
    def seconds(self) -> float | None:
        """The age at which the newest checkpoint is replaced; None where only steps count."""
        if self.every_seconds is None and self.every_steps is None:
            return 300.0
        return self.every_seconds
