"""Events in words: one short sentence each, for people who are woken at three in the morning.

`airflow-elastic run`, `airflow-elastic events` and the task's log in Airflow use the same sentences.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Collection, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_elastic.core.health.recovery import measured_from, stayed_words
from airflow_elastic.core.health.recovery import words as recovery_words
from airflow_elastic.core.phases import results
from airflow_elastic.core.state import Attempt, Cause, Phase
from airflow_elastic.core.units import size
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from airflow_elastic.spec.status import Waiting, WorkerPhase

if TYPE_CHECKING:
    from airflow_elastic.core.state import RunState
    from airflow_elastic.spec.brain.proposal import Proposal
    from airflow_elastic.spec.events import Event
    from airflow_elastic.spec.models.start import Origin
    from airflow_elastic.spec.run import RunSpec
    from airflow_elastic.spec.status import JobStatus, Progress, Wait

#: Of a TensorBoard beside workers on a cluster.
BOARD_PORT = 6006

#: The label of a job's pods; `engines.kube.render.names` has it, too.
_JOB_LABEL = "airflow-elastic/job"

#: The engine whose own platform shows TensorBoard.
_SHOWS_IT = "pytorchtrainingjob"


def sentence(event: Event, before: RunState | None, state: RunState) -> str | None:
    """What happened, in a sentence without a full stop; None for an event that changed nothing.

    Args:
        event: of the journal.
        before: the state before it; None for the first event.
        state: the state after it.
    """
    if before is None:
        return _created(state)
    if before == state:
        return None
    match event:
        case ev.RunCreated():
            return None
        case ev.RunReopened():
            start = _start(state.saved_step, state.origin)
            return f"run reopened, it had {before.outcome}: budget and deadline start again, {start}"
        case ev.OwnerChanged():
            return f"{event.owner} carries the run on"
        case ev.RunMoved():
            return _moved(before.spec, state.spec)
        case ev.AttemptSubmitted():
            attempt = state.attempt
            if attempt.home is None:
                disks = state.spec.checkpoint.disk is not None and attempt.number > 1
                newer = ", or what workers have on disk" if disks else ""
                what = (
                    f"submitted: {workers(attempt.workers)}, {_start(attempt.from_step, state.origin)}{newer}"
                )
            else:
                what = f"begins in place: {_in_place(state, event.replacements or ())}"
            board = board_command(state.spec, event.job)
            shown = f". To watch it in TensorBoard: {board}" if board else ""
            return f"attempt {attempt.number} {what}{shown}"
        case ev.SubmitRefusedByEngine():
            if state.attempt.held is None:
                return f"attempt {event.attempt} refused by the engine: {event.reason}"
            return f"attempt {event.attempt} is refused for now, and waits to be accepted: {event.reason}"
        case ev.SubmitHeldByEngine():
            return f"attempt {event.attempt} is queued: {event.reason}"
        case ev.CheckpointCommitted():
            return f"checkpoint {event.step} committed"
        case ev.PhaseCompleted():
            kept = "".join(f", {words}" for words in results(event.results))
            return f"phase {event.name or event.phase} ended after {event.steps} steps, at step {event.step}{kept}"
        case ev.SaveFailed():
            of = "" if event.attempt == state.attempt.number else f" of attempt {event.attempt}"
            return f"step {event.step}{of} is not saved as it should be, says {event.worker}: {event.reason}"
        case ev.SaveLeftOut():
            return f"the save of step {event.step} was left out: {event.reason}"
        case ev.PruneRefused():
            return f"old checkpoints stay where they are: {event.reason}"
        case ev.CheckpointQuarantined():
            aside = f"checkpoint {event.step} is damaged and was set aside"
            return f"{aside}, training goes on from {event.newest}: {event.reason}"
        case ev.CopyRefused():
            refused = f"a copy of checkpoint {event.step} was not used by {event.worker}: {event.reason}"
            return refused if event.newest is None else f"{refused}; training goes on from {event.newest}"
        case ev.RanksFailed():
            return f"ranks of {event.worker.name} have failed, its agent waits for the next generation"
        case ev.RejoinRefused():
            return f"attempt {event.attempt} cannot begin in place: {event.reason}; the next one has a job of its own"
        case ev.WorkersEnded() | ev.Stalled():
            ended = state.attempts[event.attempt - 1]
            follows = "" if ended is state.attempt else f"; {_following(before, state)}, in the same job"
            return _attempt_ended(ended) + follows
        case ev.AttemptGone():
            return _gone(before, state)
        case ev.BackoffElapsed():
            return f"pause over: attempt {event.attempt} begins"
        case ev.ScaleRequested():
            return _scale(event, before, state)
        case ev.ScaleDecided():
            return _decided(event, before, state)
        case ev.Scaled():
            return f"attempt {event.attempt} now has {workers(event.workers)}"
        case ev.Regrouped():
            count, held = len(event.members), state.attempt.workers - len(event.members)
            if held:
                return f"attempt {event.attempt} trains with {workers(count)} while {held} more {_are(held)} held up"
            return f"attempt {event.attempt} trains with all its {workers(count)}"
        case ev.Recovered():
            start = measured_from(state.attempts[event.attempt - 2])
            stayed = stayed_words(event.stayed, event.ranks)
            return f"attempt {event.attempt} trains, {recovery_words(event.recovery, start)}{stayed}"
        case ev.StandbyAsked():
            names = ", ".join(f"node-{index}" for index in event.workers)
            return f"{names} {_are(len(event.workers))} started to stand by" + (
                f": {event.reason}" if event.reason else ""
            )
        case ev.ScaleFailed():
            return (
                f"attempt {event.attempt} could not be changed to {workers(event.workers)}: {event.reason}; "
                "a new attempt will have them"
            )
        case ev.SaveRequested():
            return f"checkpoint asked for by {event.by}"
        case ev.SaveOrdered():
            return f"attempt {event.attempt} asked to save"
        case ev.ResumeRequested():
            then = f": attempt {state.attempt.number} ends" if state.attempt.phase is Phase.ENDING else ""
            return f"{event.by} asked to go on from checkpoint {event.step}{then}"
        case ev.NewerSetAside():
            aside = ", ".join(map(str, event.steps)) or "there are none"
            return f"attempt {event.attempt} goes on from checkpoint {event.step}; newer ones were set aside: {aside}"
        case ev.ResumeRefused():
            return f"attempt {event.attempt} cannot go on from checkpoint {event.step}: {event.reason}"
        case ev.MachineExcluded():
            then = "the next attempt uses other machines" if event.excluded else "the next attempt may use it"
            return (
                f"machine {event.machine} {'excluded' if event.excluded else 'allowed'} by {event.by}: {then}"
            )
        case ev.StopRequested():
            return f"stop asked for by {event.by}" + _and_then(state)
        case ev.DeadlinePassed():
            return f"{state.ending.by if state.ending else 'the active deadline has passed'}" + _and_then(
                state
            )
        case ev.RunEnded():
            return f"run ended: {_ended(event.outcome, event.reason)}"


def _ended(outcome: str, reason: str) -> str:
    return reason if reason.startswith(f"{outcome} ") else f"{outcome} ({reason})"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def workers(count: int) -> str:
    """`1 worker`, `2 workers`."""
    return f"{count} worker{'' if count == 1 else 's'}"


def sizes(attempt: Mapping[str, Any]) -> str:
    """The workers of an attempt, as the status document has it, from its beginning: `2`, or `2 → 3` once scaled."""
    counts = [*(stretch["workers"] for stretch in attempt["stretches"]), attempt["workers"]]
    return " → ".join(str(count) for count, _ in groupby(counts))


def waits(wait: Wait) -> str:
    """`2 of 4 workers wait for capacity: 0/3 nodes are available`."""
    verb = _WAITS[wait.state][wait.workers > 1]
    return f"{share(wait)} {verb}" + (f": {wait.reason}" if wait.reason else "")


def restoring(done: int, whole: int) -> str:
    """`3.2 GB of 10.4 GB of the checkpoint read`."""
    return f"{size(done)} of {size(whole)} of the checkpoint read"


def share(wait: Wait) -> str:
    """`2 of 4 workers`, `all 4 workers`, `its worker`."""
    return _all(wait.of) if wait.workers == wait.of else f"{wait.workers} of {workers(wait.of)}"


def waiting(state: RunState, job: JobStatus) -> str | None:
    """What the workers of a live attempt wait for, or that all of them run; None where there is nothing to say."""
    attempt = f"attempt {state.attempt.number}"
    if job.wait is not None:
        return f"{attempt}: {waits(job.wait)}"
    there = [worker for worker in job.workers if worker.phase is not WorkerPhase.LEFT]
    if not there or job.phases() - {WorkerPhase.RUNNING, WorkerPhase.SUCCEEDED}:
        return None  # the event that follows says why a worker failed
    return f"{attempt}: {_all(len(there))} run{'s' if len(there) == 1 else ''}"


def straggler_sentence(progress: Progress, ranks: frozenset[int]) -> str:
    """`rank 1 (node-1) holds the others up: its forward pass takes 0.41 s, the others' 0.1 s`."""
    if not ranks:
        return "no rank holds the others up any more"
    slow = [rank for rank in progress.ranks if rank.rank in ranks]
    others = [rank.forward_seconds for rank in progress.ranks if rank.rank not in ranks]
    names = ", ".join(f"rank {rank.rank} ({rank.worker})" for rank in slow)
    took = max((rank.forward_seconds for rank in slow), default=0.0)
    hold, its = ("holds", "its") if len(slow) == 1 else ("hold", "their")
    usual = f", the others' {statistics.median(others):.2g} s" if others else ""
    return f"{names} {hold} the others up: {its} forward pass takes {took:.2g} s{usual}"


#: Of one worker, and of several.
_WAITS = {
    Waiting.QUEUED: ("is queued", "are queued"),
    Waiting.CAPACITY: ("waits for capacity", "wait for capacity"),
    Waiting.PULLING: ("pulls its image", "pull their image"),
    Waiting.STARTING: ("starts", "start"),
}


def _all(count: int) -> str:
    return "its worker" if count == 1 else f"all {workers(count)}"


def _created(state: RunState) -> str:
    spec = state.spec
    ranks = f" of {spec.workers.procs} ranks each" if spec.workers.procs > 1 else ""
    start = f", starts from {state.origin.words}" if state.origin else ""
    where = f"engine {spec.engine}, {spec.launcher}"
    created = f"run {spec.name} created: {workers(spec.workers.count)}{ranks}, {where}{start}"
    return created + "".join(f"; {_proposal(one, spec)}" for one in state.proposals)


def _proposal(one: Proposal, spec: RunSpec) -> str:
    """`past runs propose workers.count 4 in place of 2 (5 runs: with 4 a step takes 0.3 s)`."""
    verb = "have taught" if one.is_in(spec.to_dict()) else "propose"
    before = "" if one.now is None else f" in place of {one.now}"
    return f"past runs {verb} {one.field} {one.value}{before} ({one.runs} run{'s' * (one.runs != 1)}: {one.reason})"


def _moved(old: RunSpec, new: RunSpec) -> str:
    before, after = (spec.source_root or spec.working_dir for spec in (old, new))
    if old.script != new.script:
        return f"{new.command[0]} has changed; the next attempt begins with the new text"
    not_there = f", and not in {before}" if before else ""
    return f"the code of the run is in another folder now: {after}; the next attempt begins there{not_there}"


def _start(step: int, origin: Origin | None) -> str:
    if step:
        return f"from step {step}"
    return "from the beginning" if origin is None else f"from {origin.words}"


def _in_place(state: RunState, replacements: Collection[int]) -> str:
    attempt, origin = state.attempt, state.origin
    names = ", ".join(f"node-{index}" for index in attempt.replaces)
    of_job = [one for one in state.attempts if attempt.home in (one.number, one.home)]
    standby = {index for one in of_job for index in one.standby}
    new = [f"node-{index}{' (which stood by)' * (index in standby)}" for index in replacements]
    others = f", {', '.join(new) or 'with others'} in place of {names}" if names else ""
    # What agents still have in memory is written, and committed, before they begin.
    newer = " or later" if attempt.from_step else ", or what workers have in memory"
    step = f"{_start(attempt.from_step, origin)}{newer}"
    return f"{workers(attempt.workers)}{others}, {step}"


def _attempt_ended(attempt: Attempt) -> str:
    at = f"at step {attempt.last_step}" if attempt.last_step else "before its first step"
    if attempt.cause is Cause.SUCCEEDED:
        # A script that never reports has no steps to speak of.
        done = f" at step {attempt.last_step}" if attempt.last_step else ""
        return f"every worker succeeded: attempt {attempt.number} ends{done}"
    if attempt.cause is Cause.RESUME:
        return f"attempt {attempt.number} ends {at}, to go on from another checkpoint"
    why = attempt.failure.reason if attempt.failure else "no evidence of why"
    return f"{why}: attempt {attempt.number} ends {at}"


def _gone(before: RunState, state: RunState) -> str:
    gone = f"attempt {before.attempt.number} is gone"
    following = state.attempt
    if following.number == before.attempt.number:
        return f"{gone}, no worker is left"
    return f"{gone}: {_following(before, state)}"


def _following(before: RunState, state: RunState) -> str:
    following, cost = state.attempt, state.restarts_used - before.restarts_used
    budget = f"restart {state.restarts_used} of {state.spec.restart.backoff_limit}" if cost else "not counted"
    pause = following.not_before - following.planned_at
    after = f" after a pause of {pause:g} s" if following.phase is Phase.PAUSED else ""
    return f"attempt {following.number} follows{after} ({budget})"


def _scale(event: ev.ScaleRequested, before: RunState, state: RunState) -> str:
    by = "planned" if event.by == ev.SCHEDULE else f"asked for by {event.by}"
    if before.target == state.target:
        return f"scale step to {workers(event.workers)} {by}: that is what the run has"
    how = "" if state.attempt.cause is not Cause.SCALE_STEP else ": save, then a new attempt"
    return f"scale step {before.target} → {workers(event.workers)} {by}{how}"


def _decided(event: ev.ScaleDecided, before: RunState, state: RunState) -> str:
    decision = event.decision
    if not decision.acts:
        return f"stays at {workers(event.seen.workers)}: {decision.reason}"
    how = "" if state.attempt.cause is not Cause.SCALE_STEP else "; save, then a new attempt"
    return f"scale step {before.target} → {workers(decision.workers)} by the policy: {decision.reason}{how}"


def _and_then(state: RunState) -> str:
    """What a live attempt does now that the run should end."""
    return ": save, then end" if state.attempt.phase is Phase.ENDING else ""


def tensorboard_command(uri: str) -> str:
    """`tensorboard --logdir /mnt/runs/mnist/tensorboard`: shows the event files of a run that writes them."""
    return f"tensorboard --logdir {shlex.quote(f'{uri}/{layout.TENSORBOARD}'.rstrip('/'))}"


def board_command(spec: RunSpec, job: str) -> str | None:
    """The command that opens the TensorBoard beside the workers of a job; None if there is none.

    Worker 0 has it, and its pod is the first one by name.
    """
    board = spec.engine_options.get("tensorboard")
    if not isinstance(board, Mapping) or spec.engine == _SHOWS_IT:
        return None
    port, namespace = board.get("port", BOARD_PORT), spec.engine_options.get("namespace", "default")
    kubectl = f"kubectl -n {shlex.quote(str(namespace))}"
    pod = f"$({kubectl} get pods -l {_JOB_LABEL}={job} -o name | head -n 1)"
    return f"{kubectl} port-forward {pod} {port}"
