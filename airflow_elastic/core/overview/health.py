"""Is a run well, and why is it so, in one sentence: from its status document alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from airflow_elastic.core.event_sentences import restoring, waits
from airflow_elastic.core.overview.failing_line import with_line
from airflow_elastic.core.overview.pace import median_seconds, recent_paces
from airflow_elastic.core.overview.risk import at_risk, reached
from airflow_elastic.core.overview.slow_ranks import slow_ranks
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import Wait, Waiting

#: A controller writes at least every 5 s, and twice its longest pause is 60 s: after that none is at work.
SILENT_SECONDS = 60.0

#: So much training that is not saved is worth a person's time, whatever the run's own interval is.
UNSAVED_SECONDS = 2 * 3600.0

#: Ranks without a step for so long are worth a look, or for so many of their usual steps if that is more.
STILL_SECONDS, STILL_STEPS = 60.0, 20.0


class Level(StrEnum):
    """How well a run is. `IDLE`: nothing is wrong, but it does not train, e.g. because it was stopped."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"
    IDLE = "idle"


@dataclass(frozen=True, slots=True)
class Health:
    """How well a run is, and a sentence for it without a full stop."""

    level: Level
    headline: str


def health(document: Mapping[str, Any], now: float, *, written_at: float | None = None) -> Health:
    """How well a run is.

    Args:
        document: its status document.
        now: epoch seconds.
        written_at: when a controller last wrote. Default: the time of the document.
    """
    if document.get("outcome"):
        return _ended(document)
    silent = now - (written_at or document.get("at") or now)
    if silent > SILENT_SECONDS:
        return Health(
            Level.WARNING,
            f"No controller has written for {duration(silent)}: workers may train on, but nothing is restarted, "
            "scaled or stopped",
        )
    doing = _doing(document, now)
    wrong = list(troubles(document, now))
    if wrong:
        level = Level.ERROR if doing.level is Level.ERROR else Level.WARNING
        return Health(level, f"{doing.headline}; {'; '.join(wrong)}")
    return doing


def is_silent(document: Mapping[str, Any], now: float) -> bool:
    """Whether the run goes on, by the document that a controller last wrote, and that is too long ago."""
    return not document.get("outcome") and now - (document.get("at") or now) > SILENT_SECONDS


def duration(seconds: float) -> str:
    """`12 s`, `4 min`, `3 h 05 min`, `2 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172_800:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def short(seconds: float) -> str:
    """A short time in two digits: `12 ms`, `0.35 s`, `4.1 s`."""
    return f"{seconds * 1000:.2g} ms" if seconds < 0.1 else f"{seconds:.2g} s"


def _ended(document: Mapping[str, Any]) -> Health:
    outcome, reason = str(document["outcome"]), document.get("reason") or ""
    levels = {"succeeded": Level.OK, "failed": Level.ERROR}
    if outcome == "failed":
        reason = _placed(reason, (document.get("attempts") or [{}])[-1].get("failure"))
    told = reason.startswith(f"{outcome} ") or (outcome == "failed" and " failed" in reason)
    headline = reason if told else f"{outcome}: {reason}" if reason else outcome
    return Health(levels.get(outcome, Level.IDLE), headline[:1].upper() + headline[1:])


def _placed(reason: str, failure: Mapping[str, Any] | None) -> str:
    """The reason, with the line of the script that failed."""
    return with_line(reason, failure.get("error"), failure.get("traceback")) if failure else reason


def _doing(document: Mapping[str, Any], now: float) -> Health:
    """What the run does, or waits for."""
    state, attempts = str(document.get("state")), document.get("attempts") or [{}]
    number = attempts[-1].get("number", 1)
    if state in set(Waiting):
        words = _waiting(document.get("waiting"))
        level = Level.WARNING if state in (Waiting.QUEUED, Waiting.CAPACITY) else Level.IDLE
        return Health(level, f"Attempt {number} {words or state}")
    if state == "pausing":
        until = (document.get("pausing") or {}).get("until")
        more = f" for {duration(until - now)} more" if until is not None and until > now else ""
        return Health(Level.WARNING, f"Pauses{more} before attempt {number}{_after(attempts)}")
    if state == "ending":
        return Health(Level.IDLE, f"Attempt {number} ends")
    if state == "submitting":
        return Health(Level.IDLE, f"Attempt {number} is submitted to the engine{_after(attempts)}")
    if reading := document.get("restoring"):
        return Health(
            Level.OK, f"Attempt {number} restores: {restoring(reading['bytes'], reading['of_bytes'])}"
        )
    if starting := document.get("starting"):
        waited, limit = now - starting["since"], starting["limit_seconds"]
        return Health(
            Level.WARNING if 2 * waited > limit else Level.OK,
            f"Ranks of attempt {number} start: no step for {duration(waited)} so far, "
            f"{duration(limit)} are allowed{_after(attempts)}",
        )
    return Health(Level.OK, _training(document))


def _waiting(wait: Any) -> str | None:
    try:
        return None if wait is None else f"waits: {waits(decode(Wait, _without_none(wait)))}"
    except SpecError:  # of another release
        return None


def _without_none(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


def _after(attempts: list[Mapping[str, Any]]) -> str:
    """Why there is another attempt."""
    if len(attempts) < 2:
        return ""
    before = attempts[-2]
    failure = before.get("failure")
    why = _placed(failure["reason"], failure) if failure else before.get("cause")
    return f", after attempt {before.get('number')} ended: {why}" if why else ""


def _training(document: Mapping[str, Any]) -> str:
    step, total = reached(document), document.get("total_steps")
    if not step:
        return "Trains; no step is reported so far"
    of = f" of {total:,}" if total else ""
    speed = (document.get("samples") or {}).get("per_second") or 0.0
    rate = f", {speed:,.4g} samples/s" if math.isfinite(speed) and speed > 0 else ""
    return f"Trains at step {step:,}{of}{rate}"


def troubles(document: Mapping[str, Any], now: float) -> Iterator[str]:
    """What a person should know although the run goes on."""
    ranks = document.get("ranks") or []
    if found := slow_ranks(document):
        slow, lost = found["ranks"], found["lost_seconds"]
        names = ", ".join(f"rank {one['rank']} ({one['worker'] or 'unknown worker'})" for one in slow[:3])
        more = f" and {len(slow) - 3} more" if len(slow) > 3 else ""
        cost = f", by {short(lost)} of each {short(found['step_seconds'])} step" if lost is not None else ""
        yield f"{names}{more} {'holds' if len(slow) == 1 else 'hold'} the others up{cost}"
    if document.get("state") == "running" and not document.get("starting") and not document.get("restoring"):
        yield from _still(ranks, now)
    loss = document.get("loss")
    if isinstance(loss, float) and not math.isfinite(loss):
        yield f"the loss is {'not a number' if math.isnan(loss) else 'infinite'}"
    yield from _not_saved(document)
    unsaved = (document.get("checkpoints") or {}).get("unsaved")
    if unsaved is not None:
        yield f"step {unsaved['step']} is not saved as it should be: {unsaved['reason']}"
    used, limit = (
        (document.get("restarts") or {}).get("used", 0),
        (document.get("restarts") or {}).get("limit"),
    )
    if limit and used >= limit:
        yield f"all {limit} restarts are used: the next failure ends the run"
    wait = document.get("waiting")
    if wait and document.get("state") == "running" and (words := _waiting(wait)):
        yield f"further workers wait: {words.removeprefix('waits: ')}"


def _not_saved(document: Mapping[str, Any]) -> Iterator[str]:
    """How much a failure would cost, if that is much."""
    paces = recent_paces(document)
    risk = at_risk(document, statistics.median(paces) if paces else None)
    if risk["seconds"] >= UNSAVED_SECONDS:
        yield f"a failure now loses {int(risk['steps']):,} steps, {duration(risk['seconds'])}"


def _still(ranks: list[Mapping[str, Any]], now: float) -> Iterator[str]:
    moved = max((rank.get("at") or 0.0 for rank in ranks), default=0.0)
    usual = median_seconds(rank.get("step_seconds") for rank in ranks) or 0.0
    if moved and now - moved > max(STILL_SECONDS, STILL_STEPS * usual):
        yield f"no rank has made a step for {duration(now - moved)}"
