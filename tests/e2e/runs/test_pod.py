"""The process of a pod: it imports torch once, for its agent and its ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.host.processes import called, marked
from airflow_elastic.adapters.records.job_files import Result
from airflow_elastic.adapters.records.job_objects import JobObjects
from airflow_elastic.adapters.records.reports import ColdStart, write_cold_start
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.forks.server import WAITING
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.run import RestartPolicy, Workers
from tests.support.driving import training
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.runs.pods import pod, submitted
from tests.support.s3 import s3_server

#: It says how it was started, and waits for `go on`.
SCRIPT = """
import json, logging, os, sys, time
place = sys.argv[1]
facts = {
    "warm": "torch" in sys.modules, "parent": os.getppid(), "command": open("/proc/self/cmdline").read(),
    "descriptors": sorted(os.listdir("/proc/self/fd"), key=int)[:-1], "loggers": len(logging.getLogger().handlers),
    "threads": os.environ["OMP_NUM_THREADS"], "safe_path": sys.flags.safe_path, "input": os.readlink("/proc/self/fd/0"),
}
with open(f"{place}/{os.environ['RANK']}.tmp", "w") as file:
    json.dump(facts, file)
os.rename(f"{place}/{os.environ['RANK']}.tmp", f"{place}/{os.environ['RANK']}.json")
while not os.path.exists(f"{place}/go on"):
    time.sleep(0.01)
"""


def job(tmp_path: Path, uri: str, **changes: Any) -> JobObjects:
    """A job of one worker with two ranks."""
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = training(
        command=(str(tmp_path / "train.py"), str(tmp_path)),
        workers=Workers(1, procs=2),
        restart=RestartPolicy(policy="Never"),
        **changes,
    )
    return submitted(uri, tmp_path / "files", spec)


def told(tmp_path: Path) -> list[dict[str, Any]] | None:
    paths = [tmp_path / f"{rank}.json" for rank in range(2)]
    return [json.loads(path.read_text()) for path in paths] if all(path.exists() for path in paths) else None


def result(folder: Path) -> Result:
    """What the pod's termination message says."""
    return decode(Result, json.loads((folder / "end").read_bytes()))


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where the run is: an object store is reached by connections, which ranks must not inherit."""
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    with s3_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{server.bucket}/run"


def test_it_imports_once(uri: str, tmp_path: Path) -> None:
    files = job(tmp_path, uri)
    with pod(files, 0, tmp_path / "pod") as process:
        until(lambda: told(tmp_path) or process.poll() is not None, "both ranks")
        ranks = told(tmp_path)
        assert ranks, (tmp_path / "pod/log").read_text()
        servers = called(marked("AIRFLOW_ELASTIC_TERMINATION", str(tmp_path / "pod/end")), WAITING)
        own = Path(f"/proc/{process.pid}/cmdline").read_text()
        forked = [Path(f"/proc/{server.pid}/cmdline").read_text() for server in servers]
        (tmp_path / "go on").touch()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert own.endswith("start_rank.py\0--pod\0")
    assert forked == [own], "no other process has imported torch: it has the command of its parent"
    for rank in ranks:
        assert rank == {
            "warm": True,
            "parent": process.pid,
            "command": own,
            "descriptors": ["0", "1", "2"],
            "loggers": 0,
            "threads": str(max(1, (os.cpu_count() or 1) // 2)),
            "safe_path": False,
            "input": "/dev/null",
        }
    assert result(tmp_path / "pod").outcome == "succeeded"


@pytest.mark.parametrize(
    "changes",
    [{"launcher_options": {"start": "cold"}}, {"launcher": "torchrun-plain"}],
    ids=["cold", "another launcher"],
)
def test_ranks_import_torch_themselves_where_they_are_told_to(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    files = job(tmp_path, str(tmp_path / "run"), **changes)
    (tmp_path / "go on").touch()
    with pod(files, 0, tmp_path / "pod") as process:
        assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "pod/log").read_text()
    ranks = told(tmp_path)
    assert ranks is not None
    assert [rank["warm"] for rank in ranks] == [False, False]
    assert [rank["safe_path"] for rank in ranks] == [False, False]


def test_ranks_start_cold_after_a_failure_that_a_fork_caused(tmp_path: Path) -> None:
    """It may be that of an earlier pod, on another machine: the run's storage has it."""
    files = job(tmp_path, str(tmp_path / "run"))
    write_cold_start(open_store(str(tmp_path / "run")), ColdStart(0.0, 1, 0))
    with pod(files, 0, tmp_path / "pod") as process:
        until(lambda: told(tmp_path) or process.poll() is not None, "both ranks")
        servers = called(marked("AIRFLOW_ELASTIC_TERMINATION", str(tmp_path / "pod/end")), WAITING)
        (tmp_path / "go on").touch()
        assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "pod/log").read_text()
    ranks = told(tmp_path)
    assert ranks is not None
    assert [rank["warm"] for rank in ranks] == [False, False]
    assert servers == [], "it is of no use, and has memory"


def test_variables_of_its_image_are_not_those_that_ranks_read_early(tmp_path: Path) -> None:
    """The agent divides the processors among its ranks, before it imports torch for them."""
    files = job(tmp_path, str(tmp_path / "run"), env={"TORCH_LOGS": "+dynamo"})
    (tmp_path / "go on").touch()
    base = {**os.environ, "OMP_NUM_THREADS": "64", "PET_NNODES": "9"}
    with pod(files, 0, tmp_path / "pod", base) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, (tmp_path / "pod/log").read_text()
    ranks = told(tmp_path)
    assert ranks is not None
    assert [(rank["warm"], rank["command"].endswith("--pod\0")) for rank in ranks] == [(True, True)] * 2
    assert "ranks 0, 1 started, 2 of them by forks" in (tmp_path / "pod/log").read_text()


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """By SIGTERM, as Kubernetes does; nothing of it is left."""
    files = job(tmp_path, str(tmp_path / "run"))
    mark = ("AIRFLOW_ELASTIC_TERMINATION", str(tmp_path / "pod/end"))
    with pod(files, 0, tmp_path / "pod") as process:
        until(lambda: told(tmp_path), "both ranks")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 143
    assert result(tmp_path / "pod").outcome == "stopped"
    until(lambda: marked(*mark) == [], "its server to end with it")


@pytest.mark.parametrize(("outcome", "code"), [("succeeded", 0), ("failed", 1)])
def test_a_standby_worker_that_comes_after_the_end_ends_as_the_others_did(
    tmp_path: Path, outcome: str, code: int
) -> None:
    """Else the Job would make another pod in its place, and never be complete."""
    files = job(tmp_path, str(tmp_path / "run"))
    assert files.ask_standby(1, lambda node: False) is not None
    files.write("node-0/result.json", Result(outcome, 0.0))
    files.create("closed", {})
    with pod(files, 1, tmp_path / "pod") as process:
        assert process.wait(PATIENCE_SECONDS) == code, (tmp_path / "pod/log").read_text()
    assert result(tmp_path / "pod").outcome == ("succeeded" if code == 0 else "lost")


def test_it_says_what_it_lacks_without_its_variables(tmp_path: Path) -> None:
    files = job(tmp_path, str(tmp_path / "run"))
    base = {**os.environ, "AIRFLOW_ELASTIC_WORKERS_BEFORE": "many"}
    with pod(files, 0, tmp_path / "pod", base) as process:
        assert process.wait(PATIENCE_SECONDS) == 2
    assert "AIRFLOW_ELASTIC_WORKERS_BEFORE" in (tmp_path / "pod/log").read_text()
