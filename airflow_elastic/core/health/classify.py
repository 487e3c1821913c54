"""The class of a failure, from the evidence: ordered rules, and the first one that matches wins.

The loss of one worker makes the others fail too. They see a connection break within milliseconds, often earlier in
time. So rules about lost and killed workers come before those about exceptions. An exception that only says "my peer
went away" comes last. Among matches of one rule the earliest one is the first failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from airflow_elastic.core.state import Failure, FailureKind
from airflow_elastic.spec.status import JobStatus, RankError, WorkerPhase, WorkerStatus

_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
}
_SIGNALS |= {3: "SIGQUIT", 13: "SIGPIPE", 15: "SIGTERM"}
_CRASHES = frozenset({4, 6, 7, 8, 11})
_PEER_GONE = re.compile(
    r"connection (closed|reset|refused|was (closed|reset))|closed by (peer|remote)|broken pipe"
    r"|peer .*(gone|lost|exited)|DistNetworkError|DistBackendError|NCCL .*(remote|system) error"
    r"|timed out waiting .*(rank|store)|socket (timeout|closed)",
    re.IGNORECASE,
)

#: Not `StoreUnfit`, which does not pass with time. The message begins with an agent's words about its failure.
_STORAGE = re.compile(r"^(the agent failed: )?Store(Error|Full): ")

#: A script may have its own `InvalidInput`, so the traceback counts. A long message may leave only the end of it; some
#: launchers keep only its last line.
_REFUSED = re.compile(r"^(the agent failed: |airflow_elastic\.spec\.errors\.)?InvalidInput: ")
_REFUSED_BY_US = re.compile(r"^(the agent failed: |airflow_elastic\.spec\.errors\.)InvalidInput: ")
_REFUSED_BY_SCRIPT = re.compile(
    r"^(?!airflow_elastic\.spec\.errors\.)([\w.]+\.)?InvalidInput: ", re.MULTILINE
)


#: Parsers of arguments end a script with this code and such a message: argparse, click, typer, fire.
_BAD_USAGE, _USAGE = 2, re.compile(r"^\s*usage: ?", re.MULTILINE | re.IGNORECASE)

#: A line of output that names an error. It is searched in so many of the last lines, and cut after so many letters.
_NAMES_ERROR = re.compile(r"(error|fatal|exception): \S", re.IGNORECASE)
_LAST, _LETTERS = 8, 300

#: The border of lines in a box.
_FRAME = " ─│╭╮╰╯"


class Death(NamedTuple):
    """One observed death: the worker, and the rank's own evidence if there is any."""

    worker: WorkerStatus
    rank: RankError

    @property
    def signal(self) -> int | None:
        """The signal that ended it, also if a shell has turned it into 128 + number."""
        code = self.rank.exit_code
        if self.rank.signal is not None:
            return self.rank.signal
        return code - 128 if code is not None and code - 128 in _SIGNALS else None


def _is_refused(death: Death) -> bool:
    """Whether the runtime has refused its input."""
    if not death.rank.traceback:
        return _says(death, _REFUSED_BY_US)
    return _says(death, _REFUSED) and not _REFUSED_BY_SCRIPT.search(death.rank.traceback)


def _has_bad_arguments(death: Death) -> bool:
    """Whether the script's own parser has refused its arguments: exit code 2 below a usage message."""
    printed = death.rank.traceback or ""
    raised = "Traceback (most recent call last)" in printed
    return death.rank.exit_code == _BAD_USAGE and not raised and _USAGE.search(printed) is not None


def _line_that_says_why(printed: str | None) -> str:
    """Of the last lines of a script's output, the one that names an error, or else the last; with a colon before it."""
    lines = [line for line in (one.strip(_FRAME) for one in (printed or "").splitlines()) if line][-_LAST:]
    telling = [line for line in lines if _NAMES_ERROR.search(line)] or lines
    return f": {telling[-1][:_LETTERS]}" if telling else ""


def _shortage(death: Death) -> str:
    return f" while memory was short: {death.rank.shortage}" if death.rank.shortage else ""


def _limit(death: Death) -> str:
    return f" ({death.rank.shortage})" if death.rank.shortage else ""


def _how_it_failed(death: Death) -> str:
    rank = death.rank
    return rank.error or f"exit code {rank.exit_code}{_line_that_says_why(rank.traceback)}"


def _how_it_ended(death: Death) -> str:
    if death.signal is None:
        return _how_it_failed(death)
    return f"{_SIGNALS.get(death.signal)}{_line_that_says_why(death.rank.traceback)}"


class Rule(NamedTuple):
    """A class of failures: which deaths belong to it, and the sentence about them."""

    kind: FailureKind
    matches: Callable[[Death], bool]
    tell: Callable[[Death], str]
    of_others: bool = False  # the death of another worker has the same effect


RULES: tuple[Rule, ...] = (
    Rule(
        FailureKind.PREEMPTED,
        lambda d: d.worker.preempted,
        lambda d: f"{d.worker.name} was preempted ({d.worker.reason or 'no reason given'})",
    ),
    Rule(
        FailureKind.OVER_LIMIT,
        lambda d: d.worker.over_limit,
        lambda d: (
            f"{d.worker.name} used more than a limit of its own ({d.worker.reason or 'no reason given'})"
        ),
    ),
    Rule(
        FailureKind.OUT_OF_MEMORY,
        lambda d: d.rank.out_of_memory,
        lambda d: f"{_who(d)} was killed by the kernel because memory ran out{_limit(d)}",
    ),
    Rule(
        FailureKind.WORKER_LOST,
        lambda d: d.worker.phase is WorkerPhase.LOST,
        lambda d: f"{d.worker.name} was lost ({d.worker.reason or 'its agent ended without a word'})",
    ),
    Rule(
        FailureKind.KILLED,
        lambda d: d.signal is not None and d.signal not in _CRASHES,
        lambda d: f"{_who(d)} was ended by {_SIGNALS.get(d.signal or 0, f'signal {d.signal}')}{_shortage(d)}",
    ),
    Rule(
        FailureKind.RESTART_ASKED,
        lambda d: d.rank.exit_code == 138,
        lambda d: f"{_who(d)} asked for a restart (exit code 138)",
    ),
    Rule(
        FailureKind.CANNOT_START,
        lambda d: d.rank.exit_code in (126, 127),
        lambda d: f"{_who(d)} could not be started: {d.rank.error or 'command not found or not executable'}",
    ),
    Rule(
        FailureKind.NEEDS_COLD_START,
        lambda d: d.rank.of_fork,
        lambda d: (
            f"{_who(d)} failed before its first step, perhaps because it was forked ({_how_it_ended(d)}). From now on "
            "ranks of this run start in new processes (for such a script, set `launcher_options: {start: cold}`)"
        ),
    ),
    Rule(
        FailureKind.CRASHED,
        lambda d: d.signal in _CRASHES,
        lambda d: f"{_who(d)} crashed with {_SIGNALS[d.signal or 0]}{_line_that_says_why(d.rank.traceback)}",
    ),
    Rule(
        FailureKind.BAD_ARGUMENTS,
        _has_bad_arguments,
        lambda d: f"{_who(d)} refused its arguments, {_how_it_failed(d)}",
    ),
    Rule(
        FailureKind.BAD_INPUT,
        _is_refused,
        lambda d: f"{_who(d)} was refused: {_REFUSED.sub('', d.rank.error or '')}",
    ),
    Rule(
        FailureKind.CODE_ERROR,
        lambda d: d.rank.exit_code is not None and not _says(d, _STORAGE) and not _says(d, _PEER_GONE),
        lambda d: f"{_who(d)} failed: {_how_it_failed(d)}",
    ),
    Rule(
        FailureKind.STORAGE,
        lambda d: _says(d, _STORAGE),
        lambda d: f"{_who(d)} could not go on without storage: {d.rank.error}",
    ),
    Rule(
        FailureKind.UNATTENDED,
        lambda d: d.worker.unattended,
        lambda d: f"{d.worker.name} ended by itself: {d.worker.reason or 'it saw no controller'}",
    ),
    Rule(
        FailureKind.WORKER_LOST,
        lambda d: _says(d, _PEER_GONE),
        lambda d: f"{_who(d)} lost its peers: {d.rank.error}",
        of_others=True,
    ),
    Rule(
        FailureKind.UNKNOWN,
        lambda d: True,
        lambda d: f"{d.worker.name}: {d.rank.error or d.worker.reason or 'failed and left no evidence'}",
    ),
)


def classify(job: JobStatus) -> Failure | None:
    """The first failure among all workers, or None if all of them succeeded or left."""
    deaths = sorted(_deaths(job), key=lambda death: death.rank.at)
    for rule in RULES:
        for death in deaths:
            if rule.matches(death):
                there = all(worker.phase is WorkerPhase.FAILED for worker in job.workers)
                return _failure(rule, death, _machine(rule, death, job), there)
    return None


def _machine(rule: Rule, death: Death, job: JobStatus) -> str | None:
    """The machine that may be to blame; None if that is unknown.

    A machine that goes dark reports nothing: its peers fail long before anybody else notices. Then the one worker that
    has not failed is on the machine to blame.
    """
    if not rule.of_others:
        return death.worker.node
    silent = _silent(job)
    return silent.node if silent else None


def _silent(job: JobStatus) -> WorkerStatus | None:
    """The one worker that reports no failure; None if there are several, or none."""
    silent = [one for one in job.workers if one.phase is WorkerPhase.RUNNING and not one.standby]
    return silent[0] if len(silent) == 1 else None


def replaced(job: JobStatus, failure: Failure) -> tuple[int, ...]:
    """The lost workers, if the next attempt can have others in their places, in the same job; else ().

    If only peers report a loss, the one silent worker is lost. Standby workers on other machines can replace it. A
    new worker cannot: a cluster that has not noticed yet may start it on the dead machine.
    """
    silent = _silent(job)
    if failure.kind is not FailureKind.WORKER_LOST or silent is None or not job.recoverable(None):
        return job.replaceable
    elsewhere = all(one.node is None or one.node != silent.node for one in job.ready)
    return (silent.index,) if job.ready and elsewhere else ()


def tells_of_lost_peers(error: str) -> bool:
    """Whether an exception, as `Type: message`, only says that other ranks are gone."""
    return _PEER_GONE.search(error) is not None


def _says(death: Death, words: re.Pattern[str]) -> bool:
    """Whether the rank's exception has these words."""
    return words.search(death.rank.error or "") is not None


def _deaths(job: JobStatus) -> Iterator[Death]:
    for worker in job.workers:
        if worker.phase in (WorkerPhase.FAILED, WorkerPhase.LOST):
            for rank in worker.errors or (RankError(),):
                yield Death(worker, rank)


def _failure(rule: Rule, death: Death, machine: str | None, all_there: bool) -> Failure:
    code = death.rank.exit_code
    if death.signal is not None:
        code = 128 + death.signal
    elif rule.kind in (FailureKind.WORKER_LOST, FailureKind.OVER_LIMIT, FailureKind.OUT_OF_MEMORY):
        code = 137
    return Failure(
        kind=rule.kind,
        reason=rule.tell(death),
        exit_code=code,
        worker=death.worker.name,
        node=machine,
        rank=death.rank.rank,
        error=death.rank.error,
        traceback=death.rank.traceback,
        all_there=all_there,
    )


def _who(death: Death) -> str:
    return death.worker.name if death.rank.rank is None else f"rank {death.rank.rank} on {death.worker.name}"


def not_in_place(reason: str, before: Failure | None) -> Failure:
    """An attempt that could not begin in the job of the one before. That one's machine is still under suspicion."""
    return Failure(
        FailureKind.WORKER_LOST,
        f"it could not begin in place: {reason}",
        worker=before.worker if before else None,
        node=before.node if before else None,
    )
