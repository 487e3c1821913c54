"""The workers of the current attempt, by units: their states, machines and ranks, and how fast these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from airflow_elastic.core.overview.pace import median_seconds, relative
from airflow_elastic.core.state import Attempt, Cause, Phase
from airflow_elastic.spec.status import RankReport, WorkerUsage
from airflow_elastic.views.cache import Snapshot


def workers(snapshot: Snapshot) -> dict[str, Any]:
    """The document of the workers.

    A unit has `workers.node_unit` workers, which come and go together. `relative` is a step time in medians of all
    ranks. Ranks that wait for each other in each step all have the same step time. So `relative_forward` shows who is
    slow: the same for the forward pass, which involves no other rank. None: not known.
    """
    state, told = snapshot.state, snapshot.progress
    ranks = told.ranks if told is not None and told.attempt == state.attempt.number else ()
    by_worker = _by_worker(ranks)
    steps = median_seconds(rank.step_seconds for rank in ranks)
    forward = median_seconds(rank.forward_seconds for rank in ranks)
    slow = set(snapshot.document["stragglers"])
    used = {one.worker: one for one in told.usage} if told is not None and ranks else {}
    placed = {str(one.get("worker")): one for one in snapshot.document["placement"]}
    rows = [
        _worker(
            name,
            by_worker.get(name, ()),
            used.get(name, WorkerUsage(name, 0.0)),
            placed.get(name, {}),
            snapshot,
            steps,
            forward,
            slow,
        )
        for name in _names(state.attempt, {**by_worker, **placed})
    ]
    unit = state.spec.workers.node_unit
    return {
        "at": snapshot.at,
        "attempt": state.attempt.number,
        "median_step_seconds": steps,
        "median_forward_seconds": forward,
        "units": [
            {"unit": number, "workers": list(found)}
            for number, found in groupby(rows, key=lambda row: max(0, row["index"]) // unit)
        ],
    }


def _by_worker(ranks: Iterable[RankReport]) -> dict[str, tuple[RankReport, ...]]:
    found: dict[str, tuple[RankReport, ...]] = {}
    for rank in ranks:
        found[rank.worker] = (*found.get(rank.worker, ()), rank)
    return found


def _names(attempt: Attempt, known: Mapping[str, object]) -> list[str]:
    """The workers that are known, and as many more as the attempt has or will have."""
    names = {*known, *(worker.name for worker in attempt.failed)}
    number = 0
    while len(names) < attempt.workers:
        names.add(f"node-{number}")
        number += 1
    return sorted(names, key=lambda name: (index(name), name))


def index(name: str) -> int:
    """The number in the name of a worker; -1 where it has none."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() and number.isascii() else -1


def _worker(
    name: str,
    ranks: tuple[RankReport, ...],
    used: WorkerUsage,
    placed: Mapping[str, Any],
    snapshot: Snapshot,
    steps: float | None,
    forward: float | None,
    slow: set[int],
) -> dict[str, Any]:
    seconds = max((rank.step_seconds for rank in ranks if rank.step_seconds > 0), default=None)
    passed = max((rank.forward_seconds for rank in ranks if rank.forward_seconds > 0), default=None)
    last = max((rank.at for rank in ranks if rank.at > 0), default=None)
    state, waiting, reason = _state(name, ranks, placed, snapshot)
    return {
        "name": name,
        "index": index(name),
        "state": state,
        "machine": placed.get("machine") or used.machine or None,
        "ranks": sorted(rank.rank for rank in ranks),
        "step": max((rank.step for rank in ranks), default=None),
        "step_seconds": seconds,
        "relative": relative(seconds, steps),
        "forward_seconds": passed,
        "relative_forward": relative(passed, forward),
        "cpu": used.cpu,
        "memory_bytes": used.memory_bytes or sum(rank.memory_bytes for rank in ranks) or None,
        "gpu_utilisation": used.gpu_utilisation,
        "gpu_memory_bytes": used.gpu_memory_bytes,
        "received_bytes_per_second": used.received_bytes_per_second,
        "sent_bytes_per_second": used.sent_bytes_per_second,
        "state_bytes": used.state_bytes,
        "last_word_at": last,
        "last_word_seconds": None if last is None else max(0.0, snapshot.at - last),
        "straggler": any(rank.rank in slow for rank in ranks),
        "waiting": waiting,
        "reason": reason,
    }


def _state(
    name: str, ranks: tuple[RankReport, ...], placed: Mapping[str, Any], snapshot: Snapshot
) -> tuple[str, str | None, str | None]:
    """The state of a worker, its wait if it waits, and the reason, as far as they are known."""
    state = snapshot.state
    attempt = state.attempt
    for worker in attempt.failed:
        if worker.name == name:
            return "failed", None, worker.reason or (worker.errors[0].error if worker.errors else None)
    if attempt.failure is not None and attempt.failure.worker == name:
        return "failed", None, attempt.failure.reason
    if state.ended or attempt.phase in (Phase.ENDING, Phase.GONE):
        return ("succeeded" if attempt.cause is Cause.SUCCEEDED else "ended"), None, None
    if attempt.phase is not Phase.LIVE:
        return "planned", None, None
    if placed.get("phase") in ("failed", "lost", "succeeded"):
        return placed["phase"], None, placed.get("reason")
    if any(rank.step for rank in ranks):
        return "running", None, None
    if placed.get("standby") and placed.get("phase") == "running":
        return "standby", None, None
    if placed.get("waiting"):
        return "waiting", placed["waiting"], placed.get("reason")
    wait = snapshot.document["waiting"]
    if not ranks and not placed and wait is not None:
        return "waiting", wait["state"], wait["reason"]
    return "starting", None, placed.get("reason")
