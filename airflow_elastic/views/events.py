"""The events of a run, in pages, filtered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_elastic.spec.errors import InvalidInput
from airflow_elastic.views.cache import Snapshot

#: From the mildest to the most severe.
LEVELS = ("info", "warning", "error")

#: The most events of an answer, and the most characters of one text of evidence.
MOST_EVENTS, MOST_TEXT = 1000, 64 << 10


def events(
    snapshot: Snapshot, *, after: int = -1, limit: int = 500, level: str = "", q: str = ""
) -> dict[str, Any]:
    """Events in the order of the journal.

    Args:
        snapshot: of the run.
        after: number of the last event that is known; -1 for none.
        limit: the most events to return.
        level: `warning` for warnings and errors, `error` for errors. Default: all.
        q: words that the text, the kind or the evidence must have, in any case. Default: all.

    Returns:
        `total`: how many events match in all. `next`: what to give as `after` for the events that follow.

    Raises:
        InvalidInput: there is no such level.
    """
    if level and level not in LEVELS:
        raise InvalidInput(f"level: given {level[:80]!r}; allowed: {', '.join(LEVELS)}")
    weight = LEVELS.index(level) if level else 0
    words = q.lower().split()
    found = [
        event for event in snapshot.events if LEVELS.index(event["level"]) >= weight and _has(event, words)
    ]
    page = [event for event in found if event["seq"] > after][: max(0, min(limit, MOST_EVENTS))]
    complete = not page or page[-1] is found[-1]
    newest = snapshot.events[-1]["seq"] if snapshot.events else -1
    return {
        "at": snapshot.at,
        "total": len(found),
        "next": max(after, newest) if complete else page[-1]["seq"],
        "events": [_short(event) for event in page],
    }


def _has(event: Mapping[str, Any], words: Iterable[str]) -> bool:
    text = f"{event['text']} {event['kind']} {event['event']}".lower()
    evidence = event["evidence"] or {}
    return all(
        word in text or any(word in value.lower() for value in evidence.values() if isinstance(value, str))
        for word in words
    )


def _short(event: dict[str, Any]) -> dict[str, Any]:
    """The event with texts of bounded length: of a long one the end, which says what went wrong."""
    evidence = event["evidence"]
    if evidence is None:
        return event
    cut = {name: _cut(value) if isinstance(value, str) else value for name, value in evidence.items()}
    return {**event, "text": _cut(event["text"]), "evidence": cut}


def _cut(text: str) -> str:
    left = len(text) - MOST_TEXT
    return text if left <= 0 else f"({left:,} characters left out here) … {text[left:]}"
