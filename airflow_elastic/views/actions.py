"""The actions that a person may ask of a run, with their costs: each is a request in the mailbox of the run."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_elastic.adapters.records import checkpoint_retention
from airflow_elastic.control.runs import Run
from airflow_elastic.core.event_sentences import workers as count_of
from airflow_elastic.core.overview.health import duration, is_silent
from airflow_elastic.core.overview.pace import recent_paces
from airflow_elastic.core.overview.risk import at_risk
from airflow_elastic.engines.api import find_engine
from airflow_elastic.spec.errors import InvalidInput, Problem, SpecError

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.views.cache import Snapshot

NAMES = ("scale", "save", "stop", "pin", "unpin", "resume", "exclude")

_MAY_NOT = (
    "you may look at this run, but not change it: that takes the right to edit the task instances of its DAG"
)


def actions(snapshot: Snapshot, *, edit: bool) -> list[dict[str, Any]]:
    """Each action: whether it can be asked for now, if not why, and what it will cost.

    Args:
        snapshot: of the run.
        edit: whether the person may change the run.
    """
    state = snapshot.state
    restart = _restart(snapshot)
    ended = f"the run has ended ({state.outcome})" if state.ended else None
    succeeded = "the run has succeeded" if state.outcome == "succeeded" else None
    size = state.spec.workers
    fixed = f"the run has {size.count} workers, never more or less" if size.at_least == size.at_most else None
    reports = snapshot.progress is not None and snapshot.progress.attached
    silent = None if reports or state.ended else "no rank has reported yet, so none would save"
    risk = at_risk(snapshot.document, _pace(snapshot))
    why_not: dict[str, str | None] = {
        "scale": ended or fixed,
        "save": ended or silent,
        "stop": ended,
        "pin": None if state.checkpoints else "there is no checkpoint yet",
        "unpin": None,
        "resume": succeeded or (None if state.checkpoints else "there is no checkpoint yet"),
        "exclude": ended or _one_machine(state),
    }
    costs = {
        "scale": f"Workers save, and train on with the new number. No step is lost; training pauses {restart}.",
        "save": f"Training pauses for the copy of the state{_saving(snapshot)}, and goes on while it is written.",
        "stop": "Workers save, then end; the step they are at is kept. The run can be carried on later.",
        "pin": "The checkpoint stays, and takes its place in storage, until it is unpinned.",
        "unpin": "The next save may remove the checkpoint, if the run's policy does not keep it.",
        "resume": f"Nothing happens now. To let the run go on from this step, then {_again(snapshot)}"
        if state.ended
        else f"The attempt ends without saving{_lost(risk)}. Later checkpoints are set aside, training pauses "
        f"{restart}.",
        "exclude": "Nothing happens now. From the next attempt on no worker runs on the machine.",
    }
    return [
        {
            "name": name,
            "allowed": edit and why_not[name] is None,
            "why_not": why_not[name] if edit else _MAY_NOT,
            "cost": costs[name],
        }
        for name in NAMES
    ]


def ask(snapshot: Snapshot, name: str, given: Mapping[str, Any], *, by: str) -> str:
    """Ask for an action; returns what follows, in words for the person.

    Args:
        snapshot: of the run.
        name: one of `NAMES`.
        given: the values of the action, e.g. `{"workers": 4}` for `scale`.
        by: who asks, as the record of the run shows it.

    Raises:
        SpecError: a value is missing or not allowed.
        InvalidInput: there is no such action, or the run cannot do it any more.
        CheckpointDamaged: there is no such checkpoint.
    """
    if name not in NAMES:
        raise SpecError(Problem("action", name, ", ".join(NAMES)))
    known = _VALUES.get(name)
    if unknown := sorted(set(given) - {known}):
        raise SpecError(Problem(unknown[0], given[unknown[0]], f"only {known}" if known else "no values"))
    run = Run(snapshot.store)
    then = _then(snapshot)
    match name:
        case "scale":
            wanted = _integer(given, "workers")
            run.ask_scale(wanted, by=by)
            return f"Asked for {count_of(wanted)}. {then}"
        case "save":
            run.ask_save(by=by)
            return f"Asked for a checkpoint. {then}"
        case "stop":
            run.ask_stop(by=by)
            return f"Asked to save and end. {then}"
        case "pin":
            step = _integer(given, "step")
            run.pin(step, by=by)
            return f"The checkpoint of step {step} is pinned: it stays until it is unpinned."
        case "unpin":
            step = _integer(given, "step")
            if step not in checkpoint_retention.pinned(snapshot.store):
                raise InvalidInput(f"the checkpoint of step {step} is not pinned")
            checkpoint_retention.unpin(snapshot.store, step)
            return f"The checkpoint of step {step} is not pinned any more."
        case "resume":
            step = _integer(given, "step")
            run.ask_resume(step, by=by)
            ended = f"To carry the run on, {_again(snapshot)}" if snapshot.state.ended else then
            return f"Asked to go on from step {step}. {ended}"
        case _:
            machine = _text(given, "machine")
            run.ask_exclude(machine, by=by)
            return f"Asked for no worker on {machine} from the next attempt on. {then}"


#: The value that each action has.
_VALUES = {"scale": "workers", "pin": "step", "unpin": "step", "resume": "step", "exclude": "machine"}


def _integer(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise SpecError(Problem(name, value, "a whole number from 0 on"))
    return value


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 253:  # the longest name of a Kubernetes node
        raise SpecError(Problem(name, value, "a name of at most 253 letters"))
    return value


def _then(snapshot: Snapshot) -> str:
    written = {**snapshot.document, "at": snapshot.written_at or snapshot.state.created_at}
    if is_silent(written, snapshot.at):
        return "No controller is at work now; it is done as soon as one reads the request."
    return "Its controller does it within seconds; the events then say so."


def _one_machine(state: RunState) -> str | None:
    try:
        able = find_engine(state.spec.engine).capabilities.exclude
    except InvalidInput as error:
        return f"the engine cannot be asked from here: {error}"
    return None if able else f"engine {state.spec.engine!r} has no other machine"


def _pace(snapshot: Snapshot) -> float | None:
    known = recent_paces(snapshot.document)
    return statistics.median(known) if known else None


def _restart(snapshot: Snapshot) -> str:
    """How long ranks took to start so far."""
    took = [
        stretch["first_step_at"] - stretch["started_at"]
        for attempt in snapshot.document["attempts"]
        for stretch in attempt["stretches"]
        if stretch.get("first_step_at") is not None
    ]
    return f"for about {duration(statistics.median(took))}" if took else "until ranks have started again"


def _again(snapshot: Snapshot) -> str:
    """How a run that has ended is carried on."""
    if any(snapshot.tasks):
        return "clear its task in Airflow."
    return f"call `airflow-elastic run --uri {shlex.quote(snapshot.store.uri)}`."


def _saving(snapshot: Snapshot) -> str:
    """How long a save stopped the ranks of the current attempt so far."""
    state = snapshot.state
    saved = sum(one.get("saving_seconds", 0.0) for one in snapshot.document["attempts"][-1]["stretches"])
    return f" (about {saved / state.checkpoints:.2g} s)" if saved and state.checkpoints else ""


def _lost(risk: Mapping[str, float]) -> str:
    steps = int(risk["steps"])
    return f": {steps:,} steps since the newest checkpoint are lost" if steps else ""
