"""`airflow-elastic list` and `top` over real runs in folders, `top` also on a real terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from airflow_elastic.cli.inspect.all_runs import list_runs, top
from airflow_elastic.spec import events as ev
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.runs.watched import submitted, trained, write_run


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of pytest-xdist may say that its terminal is narrow."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "dag/one", submitted(), progress=trained(250), name="one")
    evil = "rank 0 failed: \x1b[31mred\x1b[0m [bold]\x07"
    write_run(tmp_path / "two", submitted(), ev.RunEnded(time.time(), "failed", evil), name="two")
    return tmp_path


def test_the_list_says_why(root: Path) -> None:
    done = CliRunner().invoke(list_runs, [str(root)])
    assert done.exit_code == 0, done.output
    assert "dag/one" in done.output
    assert "Trains at step 250 of 1,000" in done.output
    assert "Rank 0 failed: " in done.output
    assert "[bold]" in done.output
    assert "\x1b" not in done.output
    assert "2 runs, 1 training with 2 workers, 1 failed" in done.output


def test_the_list_as_json_filtered_and_sorted(root: Path) -> None:
    def names(*options: str) -> list[str]:
        done = CliRunner().invoke(list_runs, [str(root), "--json", *options])
        assert done.exit_code == 0, done.output
        return [run["name"] for run in json.loads(done.output)["runs"]]

    assert names("--sort", "name") == ["one", "two"]
    assert names("--sort", "-name") == ["two", "one"]
    assert names("--state", "failed") == ["two"]


def test_bad_input_and_no_runs(tmp_path: Path) -> None:
    assert "0 runs" in CliRunner().invoke(list_runs, [str(tmp_path)]).output
    wrong = CliRunner().invoke(list_runs, [str(tmp_path), "--sort", "colour"])
    assert "allowed: updated" in str(wrong.exception)


def test_top_prints_once_where_there_is_no_terminal(root: Path) -> None:
    done = CliRunner().invoke(top, [str(root)])
    assert done.exit_code == 0, done.output
    assert "Trains at step 250" in done.output


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_watches_until_a_key_ends_it(root: Path, key: bytes) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "airflow_elastic.cli", "top", str(root), "--every", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_controlled,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "150", "LINES": "40", "PYTHONPATH": str(Path.cwd())},
    ) as running:
        os.close(theirs)
        shown = b""
        while shown.count(b"2 runs") < 2:  # it has looked again
            shown += os.read(ours, 1 << 16)
        os.write(ours, key)
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError:  # closed
            pass
        assert running.wait(PATIENCE_SECONDS) == 0, shown[-2000:]
        os.close(ours)
    assert b"Trains at step 250" in shown
    assert b"\x1b[?1049l" in shown  # the screen is as before


def _controlled() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
