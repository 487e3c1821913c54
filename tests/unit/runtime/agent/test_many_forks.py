"""Many forks of one server, which use the threads of numpy and torch at once: none hangs.

ELASTIC_TEST_FORKS is how many. ADR 0037 tells of 10,000.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.launchers import TORCHRUN, Place
from airflow_elastic.runtime.agent.fork_server import ForkServer
from airflow_elastic.runtime.agent.worker import Worker
from airflow_elastic.runtime.forks.child import Child
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.training.saving import SavingWorker

FORKS = int(os.environ.get("ELASTIC_TEST_FORKS", "500"))
AT_ONCE = 4

#: OpenBLAS, which numpy uses, and torch share out products of this size among threads.
SCRIPT = """
import os, sys
forked = "torch" in sys.modules
import numpy, torch
alone = len(os.listdir("/proc/self/task"))
one, other = numpy.ones((256, 256)), torch.ones(256, 256)
print(forked, alone, (one @ one).mean(), (other @ other).mean().item(), len(os.listdir("/proc/self/task")) > 1)
"""


@pytest.fixture
def node(tmp_path: Path) -> Worker:
    made = SavingWorker(str(tmp_path / "run")).node
    (tmp_path / "train.py").write_text(SCRIPT)
    spec = RunSpec(("train.py",), workers=Workers(1), working_dir=str(tmp_path))
    made.record = replace(made.record, spec=spec, name=f"job-{os.getpid()}-{tmp_path.name}")
    return made


@pytest.fixture
def server(node: Worker) -> Iterator[ForkServer]:
    made = ForkServer(node)
    yield made
    made.end()


@pytest.mark.slow
@pytest.mark.timeout(900 + FORKS)
def test_none_of_many_forks_hangs(
    node: Worker, server: ForkServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # With two threads each library has one that a fork lacks.
    environment = {**os.environ, **node.environment(), "OMP_NUM_THREADS": "2", "RANK": "0", "LOCAL_RANK": "0"}
    command = TORCHRUN.command(node.record.spec, Place(sys.executable, 0, 1, "", 0))
    threads = (os.cpu_count() or 1) > 1
    server.begin(environment)
    monkeypatch.chdir(tmp_path)
    running: deque[tuple[Child, Path]] = deque()

    def end_first() -> None:
        rank, log = running[0]
        assert rank.wait(PATIENCE_SECONDS) == 0, log.read_text()
        assert log.read_text() == f"True 1 256.0 256.0 {threads}\n"
        running.popleft()
        log.unlink()

    try:
        for number in range(FORKS):
            log = tmp_path / f"log-{number}"
            rank = server.fork(command, environment, log)
            assert rank is not None, f"fork {number}"
            running.append((rank, log))
            server.look()
            if len(running) == AT_ONCE:
                end_first()
        while running:
            end_first()
    finally:
        for rank, _ in running:
            rank.kill()
