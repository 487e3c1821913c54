"""Regions of architecture.md: diagrams for Mermaid, of the packages and of an attempt's life, drawn from the code."""

from __future__ import annotations

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import grimp

from airflow_elastic.core.machine import evolve, replay
from airflow_elastic.core.state import RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus
from generator.markdown import code, fence, table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "airflow_elastic"

# -- packages ------------------------------------------------------------------------------------------------------


def packages() -> str:
    """Which package imports which; an arrow that follows from others is left out."""
    imports = _imports()
    lines = ["flowchart TD"]
    lines += [f"    {name}" for layer in _layers() for name in layer]
    lines += [f"    {above} --> {below}" for above, below in sorted(_reduced(imports))]
    return fence("\n".join(lines), "mermaid")


def purposes() -> str:
    """Each package, and the first line of its docstring."""
    rows = []
    for name in (one for layer in _layers() for one in layer):
        path = PACKAGE / name / "__init__.py"
        module = ast.parse((path if path.exists() else PACKAGE / f"{name}.py").read_text())
        rows.append((code(name), (ast.get_docstring(module) or "").splitlines()[0]))
    return table(("package", "what it is"), rows)


def _layers() -> list[list[str]]:
    """Those of the first contract of import-linter, from above."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [[name.strip(" ()") for name in layer.split(":")] for layer in layers]


def _imports() -> set[tuple[str, str]]:
    graph = grimp.build_graph("airflow_elastic", cache_dir=None)
    pairs = set()
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            above, below = _package(module), _package(imported)
            if above and below and above != below:
                pairs.add((above, below))
    return pairs


def _package(module: str) -> str | None:
    return module.split(".")[1] if "." in module else None


def _reduced(pairs: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Without the pairs that a way over others makes, too."""
    below = defaultdict(set)
    for one, other in pairs:
        below[one].add(other)

    def reach(name: str) -> set[str]:
        return {name}.union(*(reach(other) for other in below[name]))

    for one, other in pairs:
        if not any(other in reach(between) for between in below[one] - {other}):
            yield one, other


# -- attempts ------------------------------------------------------------------------------------------------------

_SPEC = RunSpec(
    ("train.py",),
    workers=Workers(2, min=1, max=4),
    restart=RestartPolicy(backoff_limit=2, backoff_seconds=5.0),
    active_deadline_seconds=3600.0,
)
_ENDED = "[*]"


def attempt_states() -> str:
    """Each phase of an attempt, and the events that lead to the next one: found by giving the machine all of them."""
    arrows: dict[tuple[str, str], set[str]] = defaultdict(set)
    pending = [replay([ev.RunCreated(0.0, _SPEC, scales_in_place=able)]) for able in (True, False)]
    known = {_kind(state) for state in pending}
    while pending:
        state = pending.pop()
        for event in _events(state):
            after = evolve(state, event)
            if after.attempt.phase is not state.attempt.phase or after.attempt.number != state.attempt.number:
                arrows[_where(state), _where(after)].add(type(event).__name__)
            if _kind(after) not in known:
                known.add(_kind(after))
                pending.append(after)
    lines = ["stateDiagram-v2", f"    {_ENDED} --> submitting: RunCreated"]
    for (here, there), names in sorted(arrows.items()):
        lines.append(f"    {here} --> {there}: {'<br>'.join(sorted(names))}")
    return fence("\n".join(lines), "mermaid")


def _where(state: RunState) -> str:
    return _ENDED if state.outcome else state.attempt.phase.value


def _kind(state: RunState) -> tuple[object, ...]:
    """Equal for states that go on alike."""
    attempt, ending = state.attempt, state.ending and state.ending.cause
    failure = attempt.failure and attempt.failure.kind
    return (
        attempt.phase,
        attempt.cause,
        failure,
        attempt.home is None,
        bool(attempt.failed),
        state.restarts_used,
        state.outcome,
        ending,
        state.scales_in_place,
    )


def _events(state: RunState) -> Iterator[ev.Event]:
    number, at = state.attempt.number, state.attempt.planned_at + 10.0
    lost = WorkerStatus("node-1", WorkerPhase.LOST)
    error = RankError(rank=1, at=at, signal=9)
    waits = WorkerStatus("node-1", WorkerPhase.FAILED, errors=(error,), standby=True)
    done = WorkerStatus("node-1", WorkerPhase.SUCCEEDED)
    yield ev.AttemptSubmitted(at, number, f"job-a{number}")
    yield ev.SubmitRefusedByEngine(at, number, "there is no such queue")
    yield from (ev.WorkersEnded(at, number, JobStatus((worker,))) for worker in (lost, waits, done))
    yield ev.Stalled(at, number, 600.0)
    yield ev.RejoinRefused(at, number, "its agents are gone")
    yield ev.AttemptGone(at, number)
    yield ev.BackoffElapsed(at, number)
    yield ev.ScaleRequested(at, f"scale-{number}", 3, "ada")
    yield ev.StopRequested(at, "stop", "ada")
    yield ev.DeadlinePassed(at)
