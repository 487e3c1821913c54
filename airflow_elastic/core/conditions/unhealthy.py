"""Signs that a run is not well. Each has a limit of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_elastic.core.overview.health import duration
from airflow_elastic.spec.validation import Checks, Rule, finite_positive, positive_int

if TYPE_CHECKING:
    from airflow_elastic.core.conditions.look import Look

share = Rule(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1,
    "a share, above 0 and at most 1",
)

#: Shares of the first minutes say little: the run is still starting.
DEFAULT_AFTER_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Unhealthy:
    """One of these signs, in two looks in a row. At least one is set.

    Attributes:
        straggler: True: a rank holds all others up.
        no_progress: no rank has done a step for so many seconds, for whatever reason.
        restarts: the run has used so many restarts, or more.
        goodput_below: the share of the wall time in steps that count is below this.
        throughput_below: the throughput (samples/s) is below this share of its own median so far.
        unsaved: the newest checkpoint is older than so many seconds, or there is none for as long.
        after: `goodput_below` and `throughput_below` count from so many seconds after the first submission.

    Raises:
        SpecError: no sign is set, or a value is not allowed.
    """

    kind: ClassVar[str] = "unhealthy"
    reads: ClassVar[frozenset[str]] = frozenset({"throughput"})

    straggler: bool | None = None
    no_progress: float | None = None
    restarts: int | None = None
    goodput_below: float | None = None
    throughput_below: float | None = None
    unsaved: float | None = None
    after: float = DEFAULT_AFTER_SECONDS

    def __post_init__(self) -> None:
        signs = [field.name for field in fields(self) if field.name != "after"]
        with Checks() as check:
            given = [name for name in signs if getattr(self, name) is not None]
            check.that(bool(given), "straggler", None, f"one or more of {', '.join(signs)}")
            for name in given:
                check(name, getattr(self, name), _RULES[name])
            check("after", self.after, _RULES["after"])

    def __str__(self) -> str:
        return "a sign of bad health"

    def judge(self, look: Look, before: Look | None = None) -> dict[str, Any] | None:
        """The summary of the run with its `alarms`: those of both looks, each with its name and a sentence.

        A single look is not enough: ranks are slow for a moment, and a report may be late. Raises OutOfReach when the
        run has ended.
        """
        found = dict(self.signs(look))
        earlier = {name for name, _ in self.signs(before)} if before is not None else set()
        alarms = [{"alarm": name, "text": text} for name, text in found.items() if name in earlier]
        if alarms:
            return {**look.summary(), "alarms": alarms}
        if look.outcome is not None:
            raise look.out_of_reach(str(self))
        return None

    def signs(self, look: Look) -> Iterator[tuple[str, str]]:
        """The signs of one look: name and sentence."""
        document = look.document
        used = document["restarts"]["used"]
        if self.restarts is not None and used >= self.restarts:
            yield "restarts", f"{used} restarts are used, of {document['restarts']['limit']}"
        if look.outcome is not None:
            return
        if self.straggler and document["stragglers"]:
            ranks = ", ".join(map(str, document["stragglers"]))
            yield "straggler", f"rank {ranks} holds all others up"
        begun = _begun(document)
        if begun is None:
            return
        if self.no_progress is not None and (still := look.at - _moved(document, begun)) > self.no_progress:
            yield "no_progress", f"no rank has done a step for {duration(still)}"
        newest = document["checkpoints"]["newest"]
        unsaved = look.at - (newest["at"] if newest else begun)
        if self.unsaved is not None and unsaved > self.unsaved:
            yield (
                "unsaved",
                f"the last checkpoint was {duration(unsaved)} ago" if newest else "no checkpoint yet",
            )
        if look.at - begun < self.after:
            return
        if self.goodput_below is not None and document["goodput"] < self.goodput_below:
            yield "goodput", f"goodput is {document['goodput']:.0%}, below {self.goodput_below:.0%}"
        speed, usual = document["samples"]["per_second"], look.usual_per_second
        if self.throughput_below is not None and usual and speed < self.throughput_below * usual:
            yield "throughput", f"{speed:.4g} samples/s, {speed / usual:.0%} of the usual {usual:.4g}"


_RULES: dict[str, Rule] = {
    "straggler": Rule(lambda value: value is True, "True, or left out"),
    "no_progress": finite_positive,
    "restarts": positive_int,
    "goodput_below": share,
    "throughput_below": share,
    "unsaved": finite_positive,
    "after": finite_positive,
}


def _begun(document: Any) -> float | None:
    """When the engine had the first attempt; None before."""
    submitted: list[float] = [one["submitted_at"] for one in document["attempts"] if one["submitted_at"]]
    return submitted[0] if submitted else None


def _moved(document: Any, begun: float) -> float:
    """When a step was done last, by any attempt."""
    ranks = (rank["at"] for rank in document["ranks"] if rank["step"])
    stretches = (
        stretch.get("last_step_at") for attempt in document["attempts"] for stretch in attempt["stretches"]
    )
    moved: float = max([begun, *(at for at in (*ranks, *stretches) if at)])
    return moved
