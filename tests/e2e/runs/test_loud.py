"""A script that prints more than anybody reads costs its log's delay, and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.job_files import JobFiles
from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.records.rank_output import Output
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.store import Store
from airflow_elastic.engines.local.engine import state_folder
from airflow_elastic.spec import events as ev
from airflow_elastic.spec import layout
from tests.support import s3
from tests.support.cli import SCRIPTS
from tests.support.machine.patience import PATIENCE_SECONDS, until

COMMAND = Path(sys.executable).with_name("airflow-elastic")
SHORT, LONG = 4_000_000, 40


@pytest.fixture(params=["folder", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    with s3.s3_server() as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{server.bucket}/run"


def test_a_restart_waits_for_nobody_to_read(tmp_path: Path) -> None:
    shown = _restarted(uri := str(tmp_path / "run"), tmp_path, short=100_000, long=2)
    for attempt in (1, 2):
        assert _printed(tmp_path, attempt) == _logged(open_store(uri), attempt) > 10_000_000
    assert shown.count(b" of a line that says next to nothing\n") == 200_000
    assert shown.count(b"more of this line)\n") == 4


@pytest.mark.slow
def test_all_of_it_is_in_the_log_and_what_was_not_shown_is_said(uri: str, tmp_path: Path) -> None:
    shown = _restarted(uri, tmp_path, SHORT, LONG)
    assert b"left out here: the whole log is in" in shown
    for attempt in (1, 2):
        assert _printed(tmp_path, attempt) == _logged(open_store(uri), attempt)
    assert len(shown) < 2 * (_printed(tmp_path, 2) + (1 << 20))


@pytest.mark.slow
def test_a_failure_is_decided_while_its_log_is_still_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.s3_server() as server, s3.fault_proxy(server) as proxy:
        for name, value in proxy.server.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AIRFLOW_ELASTIC_HOME", str(tmp_path / "home"))
        proxy.rules({"do": "reject", "method": "PUT", "path": "/logs/"})
        store = open_store(uri := f"s3://{server.bucket}/run")
        with _run(uri, tmp_path, short=1000, long=1) as process:
            until(lambda: _has_decided(store), "the word that the first attempt has failed")
            (record,) = state_folder(uri).glob("*/job.json")
            files = JobFiles(record.parent)
            assert files.has_ended(0)
            assert (agent := files.agent(0)) is not None
            assert agent.alive
            assert _logged(store, 1) == 0
            assert not (tmp_path / "began-2").exists()
            proxy.rules()
            shown, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, shown[-2000:]
        for attempt in (1, 2):
            assert _logged(store, attempt) == _printed(tmp_path, attempt)


def _has_decided(store: Store) -> bool:
    return any(isinstance(event, ev.WorkersEnded) for event in Journal(store).read(0))


@contextlib.contextmanager
def _run(uri: str, folder: Path, short: int, long: int) -> Iterator[subprocess.Popen[bytes]]:
    words = ("--backoff-limit", "1", "--launcher", "python", "--output", "--uri", uri)
    script = (SCRIPTS / "faults/loud.py", str(short), str(long), folder)
    process = subprocess.Popen(
        [COMMAND, "run", *words, "--", *script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _restarted(uri: str, folder: Path, short: int, long: int) -> bytes:
    """What a run shows whose first attempt fails, where nobody reads any of it before the second one has begun.

    So the restart was decided, and carried out, while the output was not shown.
    """
    with _run(uri, folder, short, long) as process:
        until(lambda: (folder / "began-2").exists() or process.poll() is not None, "the second attempt")
        shown, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, shown[-2000:]
    return shown


def _printed(folder: Path, attempt: int) -> int:
    return int((folder / f"printed-{attempt}").read_text().split()[0])


def _logged(store: Store, attempt: int) -> int:
    output = Output(store, layout.attempt_logs(attempt) + layout.rank_log(1, 0))
    return sum(part.size for part in output.parts())
