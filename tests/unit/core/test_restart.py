"""What decides a restart: tables of failures and policies."""

from __future__ import annotations

import pytest

from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.machine import evolve
from airflow_elastic.core.restart import End, Restart, decide
from airflow_elastic.core.state import FailureKind, RunState
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy
from airflow_elastic.spec.status import JobStatus, WorkerStatus
from tests.support.builders import at_step, done, failed, job, lost, rank, spec, story, worker

REFUSED = "airflow_elastic.spec.errors.InvalidInput: another model"
#: What parsers print, and the line of it that says why.
PARSERS = (
    ("starting\nusage: t.py [-h]\n            [--lr LR]\nt.py: error: bad --r", "t.py: error: bad --r"),
    ("Usage: t.py [OPTIONS]\nTry 't.py --help'.\n\nError: No such option: --r", "Error: No such option: --r"),
    ("Usage: t.py [OPTIONS]\n╭─ Error ─╮\n│ No such option: --r │\n╰─────────╯", "No such option: --r"),
    (
        "ERROR: Could not consume arg: --r\nUsage: t.py -\n\nFor more, run:\n  t.py --help",
        "ERROR: Could not consume arg: --r",
    ),
)
PEER = "RuntimeError: [/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:3344"


@pytest.mark.parametrize(
    ("workers", "kind", "code", "reason"),
    [
        ([worker("lost")], "worker lost", 137, "node-1 was lost"),
        (
            [worker("lost", preempted=True, reason="Evicted")],
            "preempted",
            None,
            "node-1 was preempted (Evicted)",
        ),
        ([worker(errors=(rank(None, signal=9),))], "killed", 137, "rank 1 on node-1 was ended by SIGKILL"),
        ([worker(errors=(rank(137),))], "killed", 137, "rank 1 on node-1 was ended by SIGKILL"),
        (
            [worker(errors=(rank(None, signal=9, shortage="0.3 of 64 GB were free"),))],
            "killed",
            137,
            "was ended by SIGKILL while memory was short: 0.3 of 64 GB were free",
        ),
        ([worker(errors=(rank(143),))], "killed", 143, "ended by SIGTERM"),
        ([worker(errors=(rank(130),))], "killed", 130, "ended by SIGINT"),
        (
            [worker(errors=(rank(None, signal=9, out_of_memory=True),))],
            "out of memory",
            137,
            "killed by the kernel because memory ran out",
        ),
        (
            [worker(errors=(rank(None, signal=9, out_of_memory=True, shortage="limit 256 MiB"),))],
            "out of memory",
            137,
            "because memory ran out (limit 256 MiB)",
        ),
        # The kernel killed a child: the code is the main process's own, and the evidence still counts.
        ([worker(errors=(rank(7, out_of_memory=True),))], "out of memory", 137, "memory ran out"),
        ([worker(errors=(rank(None, signal=11),))], "crashed", 139, "crashed with SIGSEGV"),
        ([worker(errors=(rank(139),))], "crashed", 139, "crashed with SIGSEGV"),
        ([worker(errors=(rank(138),))], "restart asked for", 138, "asked for a restart"),
        ([worker(errors=(rank(127, error="train.py: no such file"),))], "cannot start", 127, "no such file"),
        (
            [worker(errors=(rank(1, error="ValueError: x"),))],
            "code error",
            1,
            "rank 1 on node-1 failed: ValueError: x",
        ),
        ([worker(errors=(rank(3),))], "code error", 3, "exit code 3"),
        ([worker(errors=(rank(3, traceback="loading\nno GPU"),))], "code error", 3, "exit code 3: no GPU"),
        (
            [worker(errors=(rank(None, signal=6, traceback="what(): bad"),))],
            "crashed",
            134,
            "SIGABRT: what(): bad",
        ),
        *(
            ([worker(errors=(rank(2, traceback=printed),))], "bad arguments", 2, f"exit code 2: {line}")
            for printed, line in PARSERS
        ),
        # A script's own 2, and one that was raised, say nothing of arguments.
        ([worker(errors=(rank(2, traceback="step 3\nbad data"),))], "code error", 2, "exit code 2: bad data"),
        (
            [
                worker(
                    errors=(
                        rank(2, error="X: y", traceback="Traceback (most recent call last):\nusage: a\nX: y"),
                    )
                )
            ],
            "code error",
            2,
            "failed: X: y",
        ),
        (
            [worker(errors=(rank(1, error="InvalidInput: another model", traceback=f"File 1\n{REFUSED}"),))],
            "bad input",
            1,
            "rank 1 on node-1 was refused: another model",
        ),
        # Of a long message, a pod's word has the end.
        (
            [worker(errors=(rank(1, error="InvalidInput: another model", traceback="model: and so on"),))],
            "bad input",
            1,
            "was refused: another model",
        ),
        # What a launcher has kept that keeps the end of the output alone.
        ([worker(errors=(rank(1, error=REFUSED),))], "bad input", 1, "was refused: another model"),
        (
            [worker(errors=(rank(1, error="InvalidInput: x", traceback="train.InvalidInput: x"),))],
            "code error",
            1,
            "failed: InvalidInput: x",
        ),
        (
            [worker(errors=(rank(1, error="InvalidInput: x", traceback="File 1\nInvalidInput: x"),))],
            "code error",
            1,
            "x",
        ),
        ([worker(errors=(rank(1, error="InvalidInput: x"),))], "code error", 1, "x"),
        (
            [worker(errors=(rank(1, error="KeyError: x", traceback=f"{REFUSED}\nKeyError: x"),))],
            "code error",
            1,
            "failed: KeyError: x",
        ),
        (
            [worker(errors=(rank(1, error="StoreError: s3://b/run: Connection refused"),))],
            "storage failed",
            1,
            "could not go on without storage: StoreError: s3://b/run",
        ),
        (
            [worker(errors=(rank(None, error="the agent failed: StoreError: timed out"),))],
            "storage failed",
            None,
            "without storage",
        ),
        (
            [worker(errors=(rank(None, error="the agent failed: StoreFull: the disk is full"),))],
            "storage failed",
            None,
            "without storage",
        ),
        (
            [worker(errors=(rank(1, error="StoreUnfit: s3://b/run: permission denied"),))],
            "code error",
            1,
            "permission denied",
        ),
        ([worker(errors=(rank(1, error=PEER),))], "worker lost", 137, "lost its peers"),
        (
            [worker(unattended=True, reason="no controller")],
            "unattended",
            None,
            "ended by itself: no controller",
        ),
        (
            [worker(unattended=True), worker(name="node-0", errors=(rank(1, error="ValueError: x"),))],
            "code error",
            1,
            "ValueError: x",
        ),
        (
            [worker(unattended=True), worker(errors=(rank(1, error=PEER),))],
            "unattended",
            None,
            "no controller",
        ),
        ([worker(reason="the agent failed")], "unknown", None, "the agent failed"),
    ],
)
def test_classes(workers: list, kind: str, code: int | None, reason: str) -> None:  # type: ignore[type-arg]
    failure = classify(JobStatus(tuple(workers)))
    assert failure is not None
    assert (failure.kind, failure.exit_code) == (FailureKind(kind), code)
    assert reason in failure.reason


def test_138_is_a_signal_to_nobody() -> None:
    """128 + 10 would be SIGUSR1; here it is the user's own code."""
    failure = classify(failed(138, None))
    assert failure is not None
    assert failure.kind is FailureKind.RESTART_ASKED


def test_peers_that_failed_because_of_it_do_not_hide_the_cause() -> None:
    victim = worker("failed", name="node-0", errors=(rank(1, rank=0, error=PEER, at=9.0),))
    for culprit in (
        worker("lost"),
        worker(errors=(rank(None, signal=9, at=9.1),)),
        worker(errors=(rank(1, at=9.1, error="KeyError: 'x'"),)),
    ):
        failure = classify(job(victim, culprit))
        assert failure is not None
        assert failure.worker == "node-1"


def test_the_first_of_several_errors_is_the_one() -> None:
    early = worker(name="node-2", errors=(rank(1, rank=2, error="KeyError: 'first'", at=1.0),))
    late = worker(name="node-1", errors=(rank(1, rank=1, error="KeyError: 'second'", at=2.0),))
    failure = classify(job(late, early))
    assert failure is not None
    assert failure.rank == 2


def test_success_and_leaving_are_no_failures() -> None:
    assert classify(done()) is None
    assert classify(job(worker("succeeded"), worker("left"))) is None


def _ended(ending: JobStatus, *, step: int = 10, **policy: object) -> RunState:
    run = spec(restart=RestartPolicy(**{"backoff_limit": 3, **policy}))  # type: ignore[arg-type]
    return story(
        ev.AttemptSubmitted(1.0, 1, "a1"), ev.WorkersEnded(2.0, 1, ending, at_step(step)), run=run
    ).with_attempt()


@pytest.mark.parametrize(
    ("policy", "ending", "restarted"),
    [
        ("OnFailure", failed(1), True),
        ("OnFailure", lost(), True),
        ("OnFailure", done(), False),
        ("Always", failed(1), True),
        ("Always", done(), True),
        ("Never", failed(1), False),
        ("Never", lost(), False),
        ("ExitCode", failed(1), False),
        ("ExitCode", failed(130), True),
        ("ExitCode", failed(137), True),
        ("ExitCode", failed(138), True),
        ("ExitCode", failed(143), True),
        ("ExitCode", failed(139), False),
        ("ExitCode", failed(42), True),  # added by the user below
        ("ExitCode", lost(), True),
    ],
)
def test_policies(policy: str, ending: JobStatus, restarted: bool) -> None:
    decision = decide(_ended(ending, policy=policy, exit_codes=(42,)))
    assert isinstance(decision, Restart if restarted else End)


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always", "ExitCode"])
@pytest.mark.parametrize("ending", [worker("lost", preempted=True), worker("failed", unattended=True)])
def test_what_is_no_failure_restarts_under_every_policy(policy: str, ending: WorkerStatus) -> None:
    decision = decide(_ended(job(ending), policy=policy))
    assert decision == Restart(cost=0, delay=0.0)


def _two(first: JobStatus, second: JobStatus, *, steps: tuple[int, int] = (10, 10)) -> RunState:
    state = story()
    for number, (ending, step) in enumerate(zip((first, second), steps, strict=True), start=1):
        for event in (
            ev.AttemptSubmitted(number, number, f"a{number}"),
            ev.WorkersEnded(number, number, ending, at_step(step, attempt=number)),
        ):
            state = evolve(state, event)
        if number == 1:
            state = evolve(state, ev.AttemptGone(number, number))
    return state


def test_a_crash_loop_stops_early_and_says_why() -> None:
    decision = decide(_two(failed(), failed()))
    assert isinstance(decision, End)
    assert "the same error at step 10 twice" in decision.reason


def test_what_the_runtime_refuses_is_not_tried_again() -> None:
    decision = decide(_ended(failed(1, REFUSED), step=0))
    assert decision == End("failed", "rank 1 on node-1 was refused: another model")


def test_a_run_that_has_begun_is_refused_twice_before_it_ends() -> None:
    """It may be a machine with too little memory, or fewer workers than there are to be."""
    assert decide(_ended(failed(1, REFUSED), step=10)) == Restart(cost=1, delay=0.0)
    assert isinstance(decide(_two(lost(), failed(1, REFUSED), steps=(10, 0))), Restart)
    decision = decide(_two(failed(1, REFUSED), failed(1, REFUSED)))
    assert isinstance(decision, End)
    assert "another model; the same error at step 10 twice" in decision.reason


def test_no_crash_loop_where_the_run_gets_further_or_the_error_is_another() -> None:
    assert isinstance(decide(_two(failed(), failed(), steps=(10, 20))), Restart)
    assert isinstance(decide(_two(failed(error="KeyError: 1"), failed(error="KeyError: 2"))), Restart)


def test_losing_a_worker_twice_at_one_step_is_bad_luck() -> None:
    assert isinstance(decide(_two(lost(), lost())), Restart)


def test_storage_that_is_away_twice_at_one_step_may_be_back_the_next_time() -> None:
    away = failed(error="StoreError: s3://models/run: reading the manifest: Connection refused")
    assert isinstance(decide(_two(away, away)), Restart)
    assert decide(_two(away, away, steps=(0, 0))) == Restart(cost=1, delay=1.0)


def test_backoff_grows_only_while_nothing_is_achieved() -> None:
    assert decide(_two(lost(), lost(), steps=(0, 0))) == Restart(cost=1, delay=1.0)
    assert decide(_two(lost(), lost(), steps=(0, 5))) == Restart(cost=1, delay=0.0)
    refused = job(worker("lost", preempted=True, reason="UnexpectedAdmissionError: no devices"))
    assert decide(_two(refused, refused, steps=(0, 0))) == Restart(cost=0, delay=1.0)
    assert decide(_two(refused, refused, steps=(0, 5))) == Restart(cost=0, delay=0.0)


def _silent(seconds: float) -> RunState:
    """Two attempts of a script that tells no steps, with the same error so long after their starts."""
    state = story()
    for number in (1, 2):
        begun = 10_000.0 * number
        for event in (
            ev.AttemptSubmitted(begun, number, f"a{number}"),
            ev.WorkersEnded(begun + seconds, number, failed()),
            *([ev.AttemptGone(begun + seconds, number)] if number == 1 else []),
        ):
            state = evolve(state, event)
    return state


def test_a_script_that_tells_no_steps_loops_where_it_fails_soon() -> None:
    decision = decide(_silent(5.0))
    assert isinstance(decision, End)
    assert "the same error soon after the start twice" in decision.reason
    assert isinstance(decide(_silent(7200.0)), Restart)
