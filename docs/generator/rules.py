"""Regions of failures.md: the ordered rules, each with a case that falls under it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from airflow_elastic.core import restart
from airflow_elastic.core.health import classify
from airflow_elastic.core.machine import replay
from airflow_elastic.core.state import REPEATABLE, FailureKind
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy, RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Progress, RankError, Stretch, WorkerPhase, WorkerStatus
from generator.markdown import table


def _job(phase: str = "failed", error: RankError | None = None, **changes: Any) -> JobStatus:
    errors = () if error is None else (error,)
    return JobStatus((WorkerStatus("node-1", WorkerPhase(phase), errors=errors, **changes),))


def _rank(**changes: Any) -> RankError:
    return RankError(rank=1, at=10.0, **changes)


#: For each rule of core.classify, in their order: when it holds, and something seen for which it is the first to hold.
CLASSES: tuple[tuple[str, JobStatus], ...] = (
    ("the platform took the worker away", _job("lost", preempted=True, reason="Evicted")),
    (
        "its node ended the worker for using more than a limit of its own: a volume's size, local storage",
        _job(
            "lost", over_limit=True, reason='Evicted: Usage of EmptyDir volume "tmp" exceeds the limit "1Gi".'
        ),
    ),
    (
        "the kernel says that it killed for memory in this worker",
        _job(error=_rank(signal=9, out_of_memory=True)),
    ),
    (
        "the worker is gone, and its agent wrote no result",
        _job("lost", reason="its agent, process 4711, was killed"),
    ),
    ("a signal ended a rank, other than those of a crash", _job(error=_rank(signal=9))),
    ("a rank ended with exit code 138: the script asks for a restart", _job(error=_rank(exit_code=138))),
    (
        "exit code 126 or 127: the command is not there, or cannot be executed",
        _job(error=_rank(exit_code=127, error="train.py: no such file")),
    ),
    (
        "before its first step, a forked rank crashed or raised an error that a fork causes",
        _job(error=_rank(signal=6, of_fork=True)),
    ),
    ("SIGILL, SIGABRT, SIGBUS, SIGFPE or SIGSEGV ended a rank", _job(error=_rank(signal=11))),
    (
        "exit code 2 and a usage message: the script's own parser refuses its arguments",
        _job(
            error=_rank(
                exit_code=2,
                traceback="usage: train.py [--lr LR]\ntrain.py: error: unrecognized arguments: --rate 0.1",
            )
        ),
    ),
    (
        "the runtime refuses what it was given, e.g. a checkpoint of another model",
        _job(
            error=_rank(
                exit_code=1,
                error="InvalidInput: checkpoint 40 of s3://models/run does not fit: ...",
                traceback="airflow_elastic.spec.errors.InvalidInput: checkpoint 40 ...",
            )
        ),
    ),
    (
        "any other exit code, unless the exception only says that storage has failed, or a peer went away",
        _job(error=_rank(exit_code=1, error="ValueError: bad learning rate")),
    ),
    (
        "storage has failed under the runtime, which had tried again for a while",
        _job(error=_rank(exit_code=1, error="StoreError: s3://models/run: reading status.json: timed out")),
    ),
    (
        "no controller was there for `health.unattended_seconds`: the worker has saved and ended",
        _job(unattended=True, reason="no controller has written the run's status for 1800 s"),
    ),
    (
        "a rank failed because its peers went away, and no report says why they did",
        _job(error=_rank(exit_code=1, error="RuntimeError: Connection closed by peer")),
    ),
    ("none of these: the worker failed and left no evidence", _job(reason="the agent failed: see agent.log")),
)


def failure_classes() -> str:
    if len(CLASSES) != len(classify.RULES):
        raise SystemExit(
            f"core.classify has {len(classify.RULES)} rules, docs/generate.py describes {len(CLASSES)}"
        )
    rows = []
    for number, (rule, (when, job)) in enumerate(zip(classify.RULES, CLASSES, strict=True), 1):
        death = classify.Death(job.workers[0], (job.workers[0].errors or (RankError(),))[0])
        first = next(rule for rule in classify.RULES if rule.matches(death))
        if first is not rule:
            raise SystemExit(
                f"rule {number} ({rule.kind}): its example falls under the rule for {first.kind}"
            )
        failure = classify.classify(job)
        if failure is None or failure.reason != rule.tell(death):
            raise SystemExit(f"rule {number} ({rule.kind}): its example is classified as {failure}")
        shown = "" if failure.exit_code is None else str(failure.exit_code)
        rows.append(
            (
                str(number),
                f"**{rule.kind}**",
                when,
                shown,
                "yes" if rule.kind in REPEATABLE else "",
                failure.reason,
            )
        )
    return table(("", "class", "when", "exit code", "repeatable", "for example"), rows)


def _tale(*events: ev.Event, policy: RestartPolicy | None = None) -> Any:
    spec = RunSpec(("train.py",), workers=Workers(2, min=1, max=4), restart=policy or RestartPolicy())
    return replay((ev.RunCreated(0.0, spec, scales_in_place=False), *events))


def _fails(attempt: int, at: float, job: JobStatus, step: int = 0) -> tuple[ev.Event, ...]:
    stretch = Stretch(1, 2, 2, at, first_step_at=at, last_step_at=at, to_step=step)
    progress = Progress(attempt, at, step=step, stretches=(stretch,) if step else ())
    return (
        ev.AttemptSubmitted(at, attempt, f"job-{attempt}"),
        ev.WorkersEnded(at + 1, attempt, job, progress),
        ev.AttemptGone(at + 2, attempt, progress),
    )


_DONE = JobStatus((WorkerStatus("node-0", WorkerPhase.SUCCEEDED),))
_OF_KIND = {rule.kind: job for rule, (_, job) in reversed(list(zip(classify.RULES, CLASSES, strict=True)))}
_LOST, _CODE = _OF_KIND[FailureKind.WORKER_LOST], _OF_KIND[FailureKind.CODE_ERROR]
_LIVE = ev.AttemptSubmitted(1.0, 1, "job-1")
_GONE = ev.AttemptGone(4.0, 1)


def _stopped() -> Any:
    return _tale(_LIVE, ev.StopRequested(2.0, "r", "ada@laptop"), _GONE)


def _scaled() -> Any:
    return _tale(_LIVE, ev.ScaleRequested(2.0, "r", 3, "ada@laptop"), _GONE)


def _resumed() -> Any:
    saved = ev.CheckpointCommitted(1.5, 1, 340, "k")
    return _tale(_LIVE, saved, ev.ResumeRequested(2.0, "r", 340, "ada@laptop"), _GONE)


def _refused() -> Any:
    return _tale(ev.SubmitRefusedByEngine(1.0, 1, "the queue does not exist"), _GONE)


def _once(job: JobStatus, policy: str = "OnFailure") -> Callable[[], Any]:
    return lambda: _tale(*_fails(1, 1.0, job), policy=RestartPolicy(policy))


def _twice(job: JobStatus, limit: int, *steps: int) -> Callable[[], Any]:
    first, second = steps
    policy = RestartPolicy(backoff_limit=limit)
    return lambda: _tale(*_fails(1, 1.0, job, first), *_fails(2, 5.0, job, second), policy=policy)


#: For each `return` of core.restart.decide, in their order: when it is reached, and a state in which it is.
RULES: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("somebody has chosen a checkpoint to go on from", _resumed),
    (
        "training is complete; and the policy is not `Always`, or its budget is used up, or somebody ends the run",
        _once(_DONE),
    ),
    ("training is complete, and the policy is `Always`", _once(_DONE, "Always")),
    ("somebody has stopped the run, or its deadline has passed (then: failed)", _stopped),
    (
        "a scale step or a preemption ended the attempt. Or it should begin with another worker in place of a lost one,"
        " and lost one more before its first step. Or its ranks need a cold start, for the first time",
        _scaled,
    ),
    ("the attempt ended, and nobody knows why", lambda: None),
    (
        "the engine refuses the job for good; or before the run's first step its input or arguments are refused",
        _refused,
    ),
    ("the policy is `Never`", _once(_LOST, "Never")),
    ("the policy is `ExitCode`, and the exit code is none that it restarts", _once(_CODE, "ExitCode")),
    (
        "a repeatable failure, with the same error at the same step as in the attempt before: a crash loop",
        _twice(_CODE, 6, 0, 0),
    ),
    ("the budget is used up", _twice(_LOST, 1, 5, 9)),
    ("none of these", _once(_LOST)),
)


def restart_rules() -> str:
    body = ast.parse(inspect.getsource(restart.decide))
    returns = sum(isinstance(node, ast.Return) for node in ast.walk(body))
    if returns != len(RULES):
        raise SystemExit(
            f"core.restart.decide has {returns} returns, docs/generate.py describes {len(RULES)}"
        )
    rows = []
    for number, (when, make) in enumerate(RULES, 1):
        rows.append((str(number), when, *_outcome(make())))
    return table(("", "when", "then", "reason given"), rows)


def _outcome(state: Any) -> tuple[str, str]:
    if state is None:
        return "the run ends: failed", "the attempt ended and left no evidence of why"
    if state.outcome is not None:
        return f"the run ends: {state.outcome}", state.reason
    return "a new attempt" + (
        f", {state.restarts_used} taken from the budget" if state.restarts_used else ", at no cost"
    ), ""
