"""Several controllers submit the first job of a run to the local engine at once."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_elastic.engines.api import Job
from airflow_elastic.engines.local import LocalEngine
from airflow_elastic.engines.local import engine as module
from airflow_elastic.engines.local.host import NodeHost
from airflow_elastic.spec.run import RunSpec


def is_waited_for(file: Path) -> bool:
    """Whether a thread waits for the lock of this file: the kernel marks such lines with `->`."""
    inode = f":{file.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="needs Linux")
def test_the_second_one_starts_no_host_that_the_first_one_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stops what a removed run has left behind: it must not meet the host of the second one."""
    job = Job(str(tmp_path), RunSpec(command=("t.py",), launcher="python"), 1, 2)
    engine, calls = LocalEngine(), list[str]()
    begun = threading.Event()

    def stop(host: NodeHost) -> None:
        calls.append("stop")
        if len(calls) == 1:
            begun.set()
            while not second.done() and not is_waited_for(host.state / "submit.lock"):
                pass
        calls.append("stopped")

    monkeypatch.setattr(NodeHost, "stop", stop)
    monkeypatch.setattr(NodeHost, "ensure", lambda *_: calls.append("start"))
    (module.state_folder(job.run_uri)).mkdir(parents=True)
    (module.state_folder(job.run_uri) / "submit.lock").touch()
    with ThreadPoolExecutor(2) as threads:

        def follow() -> None:
            begun.wait()
            engine._submit(job)

        second = threads.submit(follow)
        first = threads.submit(engine._submit, job)
        first.result()
        second.result()
    assert calls == ["stop", "stopped", "start", "start"]
