"""`airflow elastic …`, by the real `airflow` command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import COUNT, Shell
from tests.support.machine.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("airflow")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def _airflow(shell: Shell, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow", "elastic", *words],
        cwd=shell.cwd,
        env={**os.environ, "AIRFLOW_HOME": str(shell.cwd / "airflow"), "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def test_airflow_has_the_same_commands_with_the_same_words(shell: Shell) -> None:
    helped = _airflow(shell, "run", "--help")
    assert helped.returncode == 0, helped.stderr
    assert "How ranks are started.  [default: torchrun]" in helped.stdout
    assert "airflow-elastic run --workers 2 --min 1 --max 4 --scale-at 500=4 -- train.py" in helped.stdout

    (shell.cwd / "go").touch()
    words = ("--launcher", "python", "--env", "A=1", "--env", "B=x=y", "--no-output", "--uri", shell.uri)
    done = _airflow(shell, "run", *words, "--", COUNT, "2", "go", "--unknown")
    assert done.returncode == 0, done.stderr
    assert "rank 0 |" not in done.stdout
    spec = shell.state.spec
    assert spec.command == (COUNT, "2", "go", "--unknown")
    assert spec.env == {"A": "1", "B": "x=y"}

    status = _airflow(shell, "status", "--json", shell.uri)
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout[status.stdout.index("{") :])["state"] == "succeeded"

    missing = _airflow(shell, "status", "nowhere")
    assert missing.returncode == 2
    assert "holds no run" in missing.stderr
