"""What is left of a rank that failed: of its output, and of what launchers say below it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_elastic.runtime.agent.reporting.evidence import (
    LINES,
    last_lines,
    of_rank,
    values,
    without_secrets,
)
from airflow_elastic.spec.run import SecretRef

USAGE = "usage: t.py [-h]\nt.py: error: unrecognized arguments: --r"
TORCHRUN = (
    f"{USAGE}\nE1127 20:17:41.5 28556 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: "
    "{code}) local_rank: 0 (pid: 28812) of binary: /usr/bin/python\nTraceback (most recent call last):\n  ...\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\nt.py FAILED\n  exitcode  : {code}"
)
ACCELERATE = (
    f"{USAGE}\nTraceback (most recent call last):\n  File launch.py, line 1\n    raise subprocess.CalledProcessError(\n"
    "subprocess.CalledProcessError: Command '['python', 't.py', '--r']' returned non-zero exit status 2."
)


@pytest.mark.parametrize(
    ("printed", "code", "left"),
    [
        (TORCHRUN.format(code=2), 2, USAGE),
        (TORCHRUN.format(code=-9), -9, USAGE),
        (ACCELERATE, 2, USAGE),
        (ACCELERATE.partition("\n  File")[2], 2, None),
        ("step 1\nValueError: x", 1, "step 1\nValueError: x"),
        ("", 1, ""),
    ],
)
def test_below_a_ranks_output_a_launcher_says_how_it_ended(printed: str, code: int, left: str | None) -> None:
    found = of_rank(1, printed)
    assert found[0] == code
    assert left is None or found[1] == left


def test_the_last_lines_are_those_that_a_terminal_would_show(tmp_path: Path) -> None:
    log = tmp_path / "rank.log"
    assert last_lines(log) is None
    log.write_bytes(b"")
    assert last_lines(log) is None
    log.write_bytes(b"  1 %\r 50 %\r100 %\r\n\x1b[31mbad\x1b[0m \xff thing\n\n")
    assert last_lines(log) == "100 %\nbad � thing"
    log.write_text("".join(f"line {n}\n" for n in range(10_000)) + "x" * 1_000_000)
    assert set(last_lines(log) or "") == {"x"}
    log.write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert (last_lines(log) or "").splitlines()[-LINES + 1 :] == [
        f"line {n}" for n in range(10_001 - LINES, 10_000)
    ]


def test_secrets_are_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cr3t")
    (tmp_path / "key").write_text("hidden\n")
    refs = [SecretRef("TOKEN", "env", "MY_TOKEN"), SecretRef("KEY", "file", str(tmp_path / "key"))]
    refs.append(SecretRef("GONE", "file", str(tmp_path / "gone")))
    assert without_secrets("login s3cr3t failed: hidden", list(values(refs))) == "login *** failed: ***"
    assert without_secrets(None, ["x"]) is None
