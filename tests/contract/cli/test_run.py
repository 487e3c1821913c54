"""`airflow-elastic run`, start to end: success, failure, replacement of a killed controller, stopping, detaching."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_elastic.adapters.records.checkpoints import steps
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from tests.support.cli import COMMAND, COUNT, FAIL, HOLD, Shell, ended
from tests.support.machine.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    folder = tmp_path / "my runs"
    folder.mkdir()
    shell = Shell(folder)
    yield shell
    shell.close()


def test_success_prints_the_story_and_the_document(shell: Shell) -> None:
    done = shell("run", "--launcher", "python", "--workers", 2, "--json", "--", COUNT, 3)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["state"] == "succeeded"
    # A run without a URI gets a folder of its own, beneath the one where it was typed.
    assert Path(document["run"]["uri"]).parent == shell.cwd / "elastic-runs"
    assert Path(document["run"]["uri"]).name.startswith("count-")
    assert document["run"]["uri"] in done.stderr
    assert "attempt 1 submitted: 2 workers, from the beginning" in done.stderr
    assert "rank 0 | rank 0 is done" in done.stderr
    assert "run ended: succeeded" in done.stderr


def test_a_specification_can_have_the_text_of_its_script(shell: Shell) -> None:
    text = "import sys\n\nprint('told', sys.argv[1:])\n"
    spec = shell.cwd / "spec.yaml"
    spec.write_text(f"command: [fit.py, one]\nlauncher: python\nscript: {json.dumps(text)}\n")
    done = shell("run", "--spec", str(spec), "--uri", shell.uri)
    assert done.returncode == 0, done.stderr
    assert "rank 0 | told ['one']" in done.stdout
    assert shell("status", shell.uri, "--script").stdout == text
    again = shell("run", "--spec", str(spec), "--uri", f"{shell.uri} again", "--", "fit.py", "two")
    assert "rank 0 | told ['two']" in again.stdout
    other = shell("run", "--spec", str(spec), "--uri", f"{shell.uri} of a file", "--", "other.py")
    assert "other.py: there is no such script" in other.stderr
    unnamed = spec.read_text().replace("fit.py, one", "-m, fit")
    spec.write_text(unnamed)
    refused = shell("run", "--spec", str(spec), "--uri", f"{shell.uri} 2")
    assert refused.returncode == 2
    assert "command: given '-m'; allowed: with script: the name of the file" in refused.stderr


def test_a_run_of_a_file_has_no_script_to_print(shell: Shell) -> None:
    assert shell(*shell.count(1)).returncode == 0
    refused = shell("status", shell.uri, "--script")
    assert refused.returncode == 2
    assert "it is in a file of the workers: " in refused.stderr


def test_a_failure_of_the_code_exits_1_with_the_ranks_traceback(shell: Shell) -> None:
    words = (
        "--launcher",
        "python",
        "--restart-policy",
        "Never",
        "--no-output",
        "--uri",
        shell.uri,
        "--",
        FAIL,
    )
    done = shell("run", *words)
    assert done.returncode == 1
    assert "rank 0's last words:" in done.stdout
    assert "in deep\n    raise ValueError" in done.stdout
    assert (
        f'Traceback (most recent call last):\n  File "{FAIL}", line' in done.stdout
    )  # runpy's frames are none of it
    assert "runpy" not in done.stdout + shell("logs", shell.uri).stdout
    assert "ValueError: the learning rate is a banana; the restart policy is Never" in done.stdout
    assert done.stderr == ""
    # Carried on it fails again, for the same reason, in a new attempt: no second run is made.
    again = shell("run", "--uri", shell.uri)
    assert again.returncode == 1
    assert "run reopened, it had failed" in again.stdout
    assert [attempt.number for attempt in shell.state.attempts] == [1, 2]


def test_whoever_gave_wrong_arguments_is_not_told_to_carry_the_run_on(shell: Shell) -> None:
    """It would be given the same arguments again."""
    script = shell.cwd / "parse.py"
    script.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = shell("run", "--launcher", "python", "--uri", shell.uri, "--", script, "--epoch", 3)
    assert done.returncode == 1, done.stdout + done.stderr
    assert (
        "refused its arguments, exit code 2: parse.py: error: unrecognized arguments: --epoch 3"
        in done.stdout
    )
    assert "a run keeps its arguments: with others begin a new one, under another --uri" in done.stdout
    assert "carry it on" not in done.stdout


def test_another_run_replaces_one_that_was_killed_and_training_never_notices(shell: Shell) -> None:
    go = shell.cwd / "go"
    words = shell.count(1, go, options=("--workers", 2))
    first = shell.start(*words)
    until(lambda: shell.counted(0) and shell.counted(1), "both ranks to count")
    workers = shell.agents()
    assert len(workers) == 2
    first.kill()
    first.wait()
    at = shell.counted()
    until(lambda: shell.counted() > at + 3, "training to go on without a controller")

    other = shell(*shell.count(2, go, options=("--workers", 3)))
    assert other.returncode == 2
    assert "workers.count: 2 there, 3 asked for" in other.stderr
    assert "command:" in other.stderr
    assert "carry that run on as it is with `airflow-elastic run --uri" in other.stderr
    assert "None" not in other.stderr
    assert shell.agents() == workers

    second = shell.start(*words)  # the same words attach
    third = shell.start(
        "run", "--uri", shell.uri
    )  # and so do no words at all, also beside another controller
    until(lambda: {second.pid, third.pid} <= _owners(shell), "both to have taken it over")
    assert shell.agents() == workers
    go.touch()
    for process in (second, third):
        code, said = ended(process)
        assert code == 0, said
        assert "carrying on" in said
        assert "run ended: succeeded" in said
        assert "created" not in said  # the past is not told again
    assert len(shell.state.attempts) == 1


def test_asking_for_other_workers_only_is_answered_with_the_command_that_scales(shell: Shell) -> None:
    bounds = ("--min", 1, "--max", 3)
    assert shell(*shell.count(1, options=(*bounds, "--workers", 1, "--keep", 2))).returncode == 0
    other = shell(*shell.count(1, options=(*bounds, "--workers", 2, "--keep", 2)))
    assert other.returncode == 2
    assert f"change its workers with `airflow-elastic scale '{shell.uri}' 2`" in other.stderr


def test_carrying_on_a_run_that_has_succeeded_says_so(shell: Shell) -> None:
    assert shell(*shell.count(1)).returncode == 0
    again = shell("run", "--uri", shell.uri)
    assert again.returncode == 0
    assert "succeeded" in again.stdout
    assert f"{shell.uri} is complete already: nothing is started" in again.stdout
    detached = shell("run", "--detach", "--uri", shell.uri)
    assert detached.returncode == 0
    assert "is complete already" in detached.stdout
    assert "detached" not in detached.stdout
    assert len(shell.state.attempts) == 1


@pytest.mark.siblings
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_at_the_very_step_and_leaves_no_process(shell: Shell, number: signal.Signals) -> None:
    go = shell.cwd / "go"
    process = shell.start("run", "--uri", shell.uri, "--workers", 1, "--", HOLD, 5, go)
    until(lambda: _step(shell) >= 3, "some steps")
    process.send_signal(number)
    code, said = ended(process)
    assert code == 1, said
    assert "stopping; workers save, then end" in said
    state = shell.state
    assert state.outcome == "stopped"
    saved = steps(open_store(shell.uri))
    assert saved == [state.attempt.last_step]
    assert (
        f"checkpoint {saved[0]} is saved; carry it on with `airflow-elastic run --uri '{shell.uri}'`" in said
    )
    until(lambda: not shell.processes(), "every process to be gone")
    if number is signal.SIGINT:
        go.touch()
        again = shell("run", "--uri", shell.uri)
        assert again.returncode == 0, again.stdout + again.stderr
        assert f"attempt 2 submitted: 1 worker, from step {saved[0]}" in again.stdout
        assert f"training from {saved[0]}" in again.stdout


def test_a_second_signal_leaves_at_once(shell: Shell) -> None:
    # It never saves and takes no hint: its worker gets all of the grace, which is long.
    (shell.cwd / "slow.yaml").write_text("health: {grace_seconds: 600}\n")
    script = shell.cwd / "stubborn.py"
    script.write_text(
        f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{Path(COUNT).read_text()}"
    )
    options = ("--launcher", "python", "--uri", shell.uri, "--spec", "slow.yaml")
    words = ("run", *options, "--", script, 1, shell.cwd / "go")
    process = shell.start(*words)
    until(shell.counted, "the rank to count")
    workers = shell.agents()
    process.send_signal(signal.SIGINT)
    until(lambda: shell.state.ending, "the stop to be journaled")
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 1
    assert "left: the workers have the request to stop, and may still be saving" in said
    assert "Traceback" not in said
    for pid in workers:
        os.kill(pid, 0)


def test_two_quick_signals_stop_the_workers_all_the_same(shell: Shell) -> None:
    process = shell.start("run", "--uri", shell.uri, "--workers", 1, "--", HOLD, 5, shell.cwd / "go")
    until(lambda: _step(shell) >= 3, "some steps")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 1
    assert "TRAIN ON" not in said
    assert shell.state.ending or shell.state.ended
    until(lambda: not shell.agents(), "the worker to save and end")
    saved = steps(open_store(shell.uri))
    assert len(saved) == 1


def test_leaving_before_the_workers_were_told_says_that_they_train_on(shell: Shell) -> None:
    process = shell.start(*shell.count(1, shell.cwd / "go"))
    until(shell.counted, "the rank to count")
    Path(shell.uri, "control").touch()  # where the mailbox would be: no request can be posted
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, said = ended(process)
    assert code == 1
    assert "left before the workers got the request to stop: they TRAIN ON; stop them with" in said
    at = shell.counted()
    until(lambda: shell.counted() > at + 3, "training to go on")


def test_a_run_goes_on_when_nobody_reads_what_it_tells(shell: Shell) -> None:
    words = " ".join(f"'{word}'" for word in (*COMMAND, *shell.count(5)))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {words} | true"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shell.state.outcome == "succeeded"


def test_detach_returns_and_leaves_it_running(shell: Shell) -> None:
    go = shell.cwd / "go"
    done = shell(*shell.count(1, go, options=("--detach",)))
    assert done.returncode == 0, done.stderr
    assert f"airflow-elastic status '{shell.uri}'" in done.stdout
    assert f"airflow-elastic logs '{shell.uri}' --follow" in done.stdout
    until(shell.counted, "the rank to count")
    following = shell.start("logs", shell.uri, "--follow")
    told = shell.start("events", shell.uri, "--follow")
    go.touch()
    assert "0 | rank 0 is done" in ended(following)[1]
    assert "run ended: succeeded" in ended(told)[1]
    log = Path(shell.uri, "controller.log")
    until(lambda: "succeeded: " in log.read_text(), "the controller's last words")


def _step(shell: Shell) -> int:
    try:
        return int(shell.status()["step"])
    except ValueError:  # there is no run yet
        return 0


def _owners(shell: Shell) -> set[int]:
    """Process ids of all that have driven the run."""
    events = Journal(open_store(shell.uri)).read()
    owners = [str(getattr(event, "owner", None)) for event in events]
    return {int(owner.rpartition(" ")[2].rstrip(")")) for owner in owners if owner.endswith(")")}
