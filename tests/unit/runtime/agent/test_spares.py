"""Ranks, started afresh and by processes that have imported torch ahead: a script must not be able to tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.host.processes import called, marked, readable
from airflow_elastic.adapters.records.job_files import Meeting
from airflow_elastic.launchers import TORCHRUN, Place
from airflow_elastic.runtime.agent import rank_group as module_of_group
from airflow_elastic.runtime.agent import spares as module
from airflow_elastic.runtime.agent.rank_group import RankGroup
from airflow_elastic.runtime.agent.spares import WAITING, Spares
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, SecretRef, Workers
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.saving import SavingWorker

#: What a script can see of the process that it runs in.
SCRIPT = """
import json, os, sys
warm = {"torch", "airflow_elastic.runtime.session.session"} <= sys.modules.keys()
import torch
print("on error", file=sys.stderr)
print(json.dumps({
    "warm": warm, "argv": sys.argv, "cwd": os.getcwd(), "name": __name__, "path": sys.path[:2],
    "stdin": sys.stdin.read(), "threads": torch.get_num_threads(), "file": __file__,
    **{f"${key}": value for key, value in os.environ.items()}, "comm": open("/proc/self/comm").read().strip(),
    "session": os.getsid(0) == os.getpid(), "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "argument": os.environ.get("ODD"),
}))
sys.exit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Worker]:
    """A worker of two ranks; nothing that it has started may be left."""
    made = SavingWorker(str(tmp_path / "run")).node
    script = tmp_path / "work" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    spec = RunSpec(
        ("train.py", "--of", "two words"), workers=Workers(1, procs=2), working_dir=str(script.parent)
    )
    made.record = replace(made.record, spec=spec, name=f"job-{os.getpid()}-{tmp_path.name}")
    yield made
    deadline = time.monotonic() + PATIENCE_SECONDS
    # What was killed takes a moment to be gone.
    while left := marked("AIRFLOW_ELASTIC_JOB", made.record.name):
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def command(node: Worker) -> list[str]:
    return TORCHRUN.command(node.record.spec, Place(sys.executable, 0, 1, "", 0))


def environments(node: Worker, **more: str) -> list[dict[str, str]]:
    alike = {**os.environ, **node.environment(), **more}
    return [{**alike, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]


def run_ranks(node: Worker, spares: Spares, monkeypatch: pytest.MonkeyPatch, **more: str) -> dict[int, int]:
    """Run the ranks to their end, in the worker's folder; returns their exit codes."""
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    with RankGroup(node, command(node), environments(node, **more), spares) as group:
        while len(group.codes) < 2:
            group.rest(1.0)
        return group.codes


def ready(node: Worker, count: int) -> None:
    """Wait until so many spares have imported what they are to."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(called(marked("AIRFLOW_ELASTIC_JOB", node.record.name), WAITING)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def seen(node: Worker, rank: int) -> dict[str, object]:
    lines = node.rank_logs()[rank].read_text().splitlines()
    assert lines[0] == "on error"
    found: dict[str, object] = json.loads(lines[1])
    return found


def test_a_script_sees_the_same_either_way(node: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = {"ODD": "ü\n\udce4 \" ' {}", "CODE": "138"}
    spares = Spares(node)
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    assert run_ranks(node, spares, monkeypatch, **odd) == {0: 138, 1: 138}
    cold = [seen(node, rank) for rank in range(2)]
    spares.begin()
    ready(node, 2)
    assert run_ranks(node, spares, monkeypatch, **odd) == {0: 138, 1: 138}
    warm = [seen(node, rank) for rank in range(2)]
    assert [one.pop("warm") for one in cold] == [False, False]
    assert [one.pop("warm") for one in warm] == [True, True]
    for before, after in zip(cold, warm, strict=True):
        different = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        assert different == set()
    assert [one["comm"] for one in warm] == ["rank-0", "rank-1"]
    assert warm[0]["argument"] == odd["ODD"]
    spares.begin()
    ready(node, 2)
    more = {**odd, "OMP_NUM_THREADS": "2"}  # which numpy and torch have read when they were imported
    assert run_ranks(node, spares, monkeypatch, **more) == {0: 138, 1: 138}
    assert (seen(node, 1)["warm"], seen(node, 1)["threads"]) == (False, min(2, os.cpu_count() or 1))


@pytest.mark.parametrize("broken", [False, True])
def test_a_failure_leaves_the_same_evidence(
    broken: bool, node: Worker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a script, or of torch, which may find a library missing."""
    if broken:
        (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so: no such file')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    Path(node.record.spec.working_dir or "", "train.py").write_text(
        "import torch\n\n\ntorch.zeros(2) @ torch.zeros(3)\n"
    )
    node.rank_files.parent.mkdir(parents=True, exist_ok=True)
    spares, told = Spares(node), []
    for _ in range(2):
        assert run_ranks(node, spares, monkeypatch) == {0: 1, 1: 1}
        error = node.rank_error(1, 1)
        told.append((error.error, error.traceback, node.rank_logs()[1].read_text()))
        spares.begin()
    spares.end()
    assert told[0] == told[1]
    assert ("libcudart.so" if broken else 'train.py", line 4') in str(told[0][1])


def test_one_that_died_is_done_without(node: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    spares = Spares(node)
    spares.begin()
    lost = marked("AIRFLOW_ELASTIC_JOB", node.record.name)[0]
    lost.send(signal.SIGKILL)
    descriptor = lost.open()
    if descriptor is not None:
        assert readable(descriptor, PATIENCE_SECONDS)
        os.close(descriptor)
    assert run_ranks(node, spares, monkeypatch) == {0: 0, 1: 0}
    assert sorted(bool(seen(node, rank)["warm"]) for rank in range(2)) == [False, True]


def test_they_end_with_their_agent(node: Worker, tmp_path: Path) -> None:
    """Whatever ends it: what they wait for is the end of their standard input."""
    program = (
        "import os, subprocess, sys\n"
        "words = [sys.executable, '-u', 'start_rank.py', '--stand-by']\n"
        "process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)\n"
        "print(process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(module.__file__).parent,
    )
    assert done.returncode == -9
    try:
        descriptor = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert readable(descriptor, PATIENCE_SECONDS), "it waits on"
    os.close(descriptor)


def test_they_give_way_where_memory_is_scarce(
    node: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    spares = Spares(node)

    def waiting() -> int:
        return len(marked("AIRFLOW_ELASTIC_JOB", node.record.name))

    def free(count: int) -> None:
        monkeypatch.setattr(module, "free_bytes", lambda: count)

    free((2 << 30) - 1)  # for two of them, and what is to stay free
    spares.begin()
    assert waiting() == 0
    free(2 << 30)
    spares.begin()
    spares.begin()  # they have been
    until(lambda: waiting() == 2, "both to have their environment, a moment after they have begun")
    free(1 << 30)
    spares.look()
    assert waiting() == 2
    free((1 << 30) - 1)
    spares.look()
    assert waiting() == 0
    free(8 << 30)
    spares.begin()
    assert waiting() == 0, "they come and go"
    assert "only 1.07 GB of memory are free" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"launcher_options": {"spares": False}},
        {"command": ("./train", "--of", "nobody")},  # whatever it is: it imports what it wants
        {"launcher": "python"},
    ],
)
def test_there_are_none_where_they_are_of_no_use(node: Worker, changed: Mapping[str, object]) -> None:
    spec = replace(node.record.spec, workers=Workers(1), **changed)  # type: ignore[arg-type]
    node.record = replace(node.record, spec=spec)
    Spares(node).begin()
    assert marked("AIRFLOW_ELASTIC_JOB", node.record.name) == []


def test_options_of_torchrun_are_checked() -> None:
    from airflow_elastic.launchers import find_launcher

    with pytest.raises(SpecError, match=r"launcher_options\.spare\b.*spares"):
        find_launcher("torchrun").refuse(RunSpec(("train.py",), launcher_options={"spare": False}))


def test_ranks_that_do_not_heed_are_killed_with_what_they_have_started(
    node: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(node.record.spec.working_dir or "", "train.py").write_text(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    monkeypatch.chdir(node.record.spec.working_dir or ".")
    with RankGroup(node, command(node), environments(node), Spares(node)) as group:
        while not all(path.read_text() for path in node.rank_logs()):
            group.rest(0.02)
    assert group.codes == {0: -9, 1: -9}
    assert len(node.rank_logs()) == 2


def test_a_secret_that_is_missing_is_the_ranks_to_tell(node: Worker) -> None:
    secret = SecretRef("TOKEN", "file", "/nowhere/token")
    node.record = replace(node.record, spec=replace(node.record.spec, secrets=(secret,)))
    Spares(node).begin()
    assert marked("AIRFLOW_ELASTIC_JOB", node.record.name) == []


def test_ranks_have_what_torchrun_gives_its_own(node: Worker, tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=1",
        str(script),
    ]
    # pytest has told readline how wide its window is, which only those know that C starts.
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    theirs = json.loads(subprocess.check_output(command, timeout=PATIENCE_SECONDS, env=environment))
    assert node.members is not None
    (ours, _) = module_of_group.rank_environments(node, node.members, Meeting("10.0.0.1", 7))
    assert theirs.keys() - ours.keys() - os.environ.keys() == {
        "TORCHELASTIC_SIGNALS_TO_HANDLE"
    }  # its own affair
    assert (ours["MASTER_ADDR"], ours["MASTER_PORT"], ours["WORLD_SIZE"]) == ("10.0.0.1", "7", "2")
