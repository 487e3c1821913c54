"""The policy by which a run chooses its number of workers itself. `core.scaling` carries it out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_elastic.spec.errors import ABSENT
from airflow_elastic.spec.validation import (
    Checks,
    Rule,
    finite_positive,
    non_negative_int,
    positive_int,
    worker_count,
)

#: Signals that every run has; a script's own numbers are `loss` and `metrics.NAME`.
SIGNALS = ("cpu", "memory", "gpu", "step_seconds", "samples_per_second")

#: Of these, the signals that are shares, from 0 to 1.
SHARES = ("cpu", "memory", "gpu")

_METRIC = re.compile(r"metrics\.\S{1,200}")
_DAY_TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?(Z|[+-]\d\d:\d\d)?")

signal_name = Rule(
    lambda value: isinstance(value, str) and (value in SIGNALS or _METRIC.fullmatch(value) is not None),
    f"one of {', '.join(SIGNALS)}, or `metrics.NAME` for a number that the script reports",
)
moment_text = Rule(
    lambda value: (
        isinstance(value, str)
        and (_DAY_TIME.fullmatch(value) is not None or _MOMENT.fullmatch(value) is not None)
    ),
    "a time of day such as `06:00`, or a date and time such as `2027-01-31T06:00`",
)
share = Rule(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1,
    "a number above 0 and at most 1",
)
part = Rule(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1,
    "a number from 0 to below 1",
)
cron_text = Rule(
    lambda value: isinstance(value, str) and len(value.split()) == 5,
    "a cron expression of five fields, such as `0 20 * * *`",
)


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The load of a worker that the run aims at, by one signal.

    Attributes:
        signal: `cpu`, `memory`, `gpu`: the share of a worker's own that it uses, from 0 to 1. `step_seconds` and
            `samples_per_second`. Or `metrics.NAME`: a number that the script reports, e.g. the length of a queue.
        target: what the signal should be. More than it asks for more workers, less for fewer.
        low: with `high` in place of `target`: a band. Within it nothing changes.
        high: the upper end of the band.
        each: whether the signal is a total that workers share, such as a queue's length: then the target is for each
            worker. Default: false; the signal is already that of one worker.
    """

    signal: str
    target: float | None = None
    low: float | None = None
    high: float | None = None
    each: bool = False

    def __post_init__(self) -> None:
        with Checks() as check:
            check("signal", self.signal, signal_name)
            for name in ("target", "low", "high"):
                if (value := getattr(self, name)) is not None:
                    check(name, value, finite_positive)
                    fits = self.signal not in SHARES or value <= 1
                    percent = f": for {value:g} % give {value / 100:g}" if 10 <= value <= 100 else ""
                    allowed = f"{share.allowed}{percent}"
                    check.that(fits, name, value, allowed, across=True)
            band = self.low is not None and self.high is not None
            either = (self.target is not None) != band and (self.low is None) == (self.high is None)
            given = ABSENT if self.target is None else self.target
            allowed = "either target, or both low and high"
            check.that(
                either, "target", given, f"give {allowed}" if given is ABSENT else allowed, across=True
            )
            if check.passed and self.low is not None and self.high is not None:
                check.that(
                    self.low < self.high, "low", self.low, f"less than high, {self.high:g}", across=True
                )


@dataclass(frozen=True, slots=True)
class CapacityRule:
    """Grow into free room, and shrink when others wait.

    Attributes:
        leave_free: room for so many workers is left to others.
        give_back: whether the run shrinks for work of a higher priority that waits. Never below `workers.min`.
        after_seconds: that work must have waited for so long.
    """

    leave_free: int = 0
    give_back: bool = True
    after_seconds: float = 30.0

    def __post_init__(self) -> None:
        with Checks() as check:
            check("leave_free", self.leave_free, non_negative_int)
            check("after_seconds", self.after_seconds, finite_positive)


@dataclass(frozen=True, slots=True)
class WorthRule:
    """Grow only while further workers still add enough.

    Attributes:
        efficiency: a further worker must add at least this share of what a worker gives on average now. 0.5: half.
        noise_scale: whether the statistical efficiency of larger batches is taken into account, by the metric
            `metrics.gradient_noise_scale` of the script. It matters only if the script makes its batch larger with
            more workers. Default: false, because the global batch of a run stays constant.
    """

    efficiency: float = 0.5
    noise_scale: bool = False

    def __post_init__(self) -> None:
        with Checks() as check:
            check("efficiency", self.efficiency, share)


@dataclass(frozen=True, slots=True)
class Window:
    """A recurring time in which the run has another number of workers.

    Attributes:
        start: when it begins, as cron: `0 20 * * *`.
        end: when it ends, as cron: `0 6 * * *`.
        workers: the number in this time. With another rule that asks for more, it is the most.
    """

    start: str
    end: str
    workers: int

    def __post_init__(self) -> None:
        with Checks() as check:
            check("start", self.start, cron_text)
            check("end", self.end, cron_text)
            check.that(self.start != self.end, "end", self.end, "another moment than start", across=True)
            check("workers", self.workers, worker_count)


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """By which rules the run chooses its number of workers, between `workers.min` and `workers.max`.

    Rules that are left out have no say. Of several that ask for more, the highest counts; fewer workers need the
    agreement of all. Room that others need is given back whatever the other rules say.

    Attributes:
        load: signals with their targets.
        capacity: use free room, and give back room that others need.
        worth: stop growing where it no longer pays.
        windows: times with another number of workers; outside of all windows it is `workers.count`.
        timezone: of the windows and of `done_by`, such as `Europe/Berlin`.
        done_by: the training should be complete by then, with the fewest workers that make it: `06:00` is the next
            such time after the run began. `2027-01-31T06:00` is one moment.
        done_margin: the share of the remaining time that is kept as a margin for `done_by`.
        gpu_hours: what the whole run may use: ranks times hours. When little is left, the run shrinks.
        sizes: the only numbers of workers that may be chosen. Default: all that `workers` permits.
        increment: sizes are `workers.min` plus a multiple of this. Default: `workers.node_unit`.
        interval_seconds: how often it decides.
        tolerance: a load that is off its target by less than this share changes nothing.
        up_seconds: a reason to grow must last for so long; at least so long passes between a change and growth.
        down_seconds: the same for shrinking.
        snooze_seconds: pause after a failure, after a step that did not work, and after a person's own request.
        must_pay: whether steps are left out that cost more time than they save before the expected end.
    """

    load: tuple[LoadTarget, ...] = ()
    capacity: CapacityRule | None = None
    worth: WorthRule | None = None
    windows: tuple[Window, ...] = ()
    timezone: str = "UTC"
    done_by: str | None = None
    done_margin: float = 0.1
    gpu_hours: float | None = None
    sizes: tuple[int, ...] = ()
    increment: int | None = None
    interval_seconds: float = 15.0
    tolerance: float = 0.1
    up_seconds: float = 60.0
    down_seconds: float = 300.0
    snooze_seconds: float = 300.0
    must_pay: bool = True

    def __post_init__(self) -> None:
        with Checks() as check:
            if self.done_by is not None:
                check("done_by", self.done_by, moment_text)
            if self.gpu_hours is not None:
                check("gpu_hours", self.gpu_hours, finite_positive)
            check("done_margin", self.done_margin, part)
            check("tolerance", self.tolerance, part)
            for i, size in enumerate(self.sizes):
                check(f"sizes.{i}", size, worker_count)
            if self.increment is not None:
                check("increment", self.increment, positive_int)
            for name in ("interval_seconds", "up_seconds", "down_seconds", "snooze_seconds"):
                check(name, getattr(self, name), finite_positive)
            names = [one.signal for one in self.load]
            twice = sorted({name for name in names if names.count(name) > 1})
            check.that(not twice, "load", ", ".join(twice), "each signal once", across=True)
            rules = (self.capacity, self.worth, self.done_by, self.gpu_hours)
            any_rule = bool(self.load or self.windows) or any(one is not None for one in rules)
            none = "it has no rule; give at least one, such as capacity, load or done_by"
            check.that(any_rule, "", ABSENT, none, across=True)
            both = bool(self.sizes) and self.increment is not None
            check.that(not both, "increment", self.increment, "either sizes or increment", across=True)
