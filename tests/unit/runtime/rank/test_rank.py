"""What a rank's process makes of a script: Python's `__main__`, and evidence of its failure whatever it did before."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.launchers import TORCHRUN, Place
from airflow_elastic.runtime.agent.reporting.evidence import recorded
from airflow_elastic.runtime.rank.error_file import ErrorFile, _line
from airflow_elastic.spec.run import RunSpec
from tests.support.machine.patience import PATIENCE_SECONDS


class Rank:
    """A rank, started in a folder as an agent starts it, and how it ended."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        kept = folder / "kept"
        kept.mkdir(exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        more = {"RANK": "0", "AIRFLOW_ELASTIC_RANK_FILES": str(kept / "g0001"), **environment}
        done = subprocess.run(
            TORCHRUN.command(RunSpec(words), Place(sys.executable, 0, 1, "", 0)),
            cwd=folder,
            env={**inherited, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        self.code, self.output = done.returncode, done.stdout
        try:
            self.evidence: dict[str, Any] = json.loads((kept / "g0001-rank-0.error.json").read_text())
        except FileNotFoundError:
            self.evidence = {}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\n  and another\n\n"), "ValueError: one and another"),
        (
            OSError(
                "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
                '  File "train.py", line 3\nOSError: shard s3 unreadable at 120\n'
            ),
            "OSError: shard s3 unreadable at 120",
        ),
        (KeyError(), "KeyError: "),
    ],
)
def test_it_is_one_line(error: Exception, line: str) -> None:
    """Events and status are tables."""
    assert _line(error) == line


def test_where_there_is_no_room_the_scripts_own_failure_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("AIRFLOW_ELASTIC_RANK_FILES", str(tmp_path / "one"))
    monkeypatch.setattr("sys.excepthook", lambda *_: None)
    ErrorFile(()).keep(ValueError("wrong"))
    assert json.loads((tmp_path / "one-rank-0.error.json").read_text())["error"] == "ValueError: wrong"
    monkeypatch.setenv("AIRFLOW_ELASTIC_RANK_FILES", str(tmp_path / "none" / "one"))
    ErrorFile(()).keep(ValueError("wrong"))
    assert "could not be written down" in capsys.readouterr().err


#: What scripts do to their surroundings before they fail.
BEFORE = {
    "nothing": "",
    "its folder": "os.chdir(tempfile.mkdtemp())",
    "a folder that is gone": "os.chdir(d := tempfile.mkdtemp()); os.rmdir(d)",
    "its own file": "os.remove(__file__)",
    "its streams": "sys.stdout = sys.stderr = None",
    "its descriptors": "os.closerange(1, 64)",
    "its environment": "os.environ.clear()",
    "its hook": "sys.excepthook = lambda kind, *_: print('hooked', kind.__name__)",
    "no hook": "del sys.excepthook",
    "its main": "sys.modules['__main__'] = type(sys)('__main__')",
    "what we use": "sys.modules['traceback'] = sys.modules['json'] = None; open = None",
    "its path": "sys.path.clear(); sys.argv.clear()",
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_failure_is_told_whatever_the_script_did_before(before: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, tempfile\n\n{BEFORE[before]}\n[].pop()\n")
    rank = Rank(tmp_path, "train.py")
    assert rank.code == 1
    assert rank.evidence["error"] == "IndexError: pop from empty list"
    lines = rank.evidence["traceback"].splitlines()
    assert lines[:2] == ["Traceback (most recent call last):", f'  File "{script}", line 4, in <module>']
    if before == "its hook":
        assert rank.output == "hooked IndexError\n"
    elif before in ("nothing", "its folder", "its environment", "its path"):
        assert rank.output == rank.evidence["traceback"]


@pytest.mark.parametrize(
    ("last", "code", "error"),
    [
        ("sys.exit('no data at /mnt')", 1, "SystemExit: no data at /mnt"),
        ("sys.exit(3)", 3, None),
        ("sys.exit()", 0, None),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt: "),
        ("os.kill(os.getpid(), signal.SIGINT); signal.pause()", -signal.SIGINT, "KeyboardInterrupt: "),
        ("raise type('Odd', (BaseException,), {})('it is')", 1, "Odd: it is"),
        ("raise type('Bad', (Exception,), {'__str__': lambda s: 1 / 0})", 1, "Bad: its text cannot be shown"),
        ("(f := lambda: f())()", 1, "RecursionError: maximum recursion depth exceeded"),
        ("if not os.fork(): raise ValueError('of a fork')\nos.wait(); sys.exit(4)", 4, None),
        ("1 +", 1, "SyntaxError: invalid syntax (train.py, line 2)"),
    ],
)
def test_it_ends_as_python_ends_it(last: str, code: int, error: str | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import os, signal, sys\n{last}\n")
    rank = Rank(tmp_path, "train.py")
    plain = subprocess.run(
        [sys.executable, tmp_path / "train.py"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (rank.code, rank.evidence.get("error")) == (code, error)
    # Three frames of ours are below the script's.
    printed = [re.sub(r"repeated \d+ more", "repeated", text) for text in (plain.stderr, rank.output)]
    assert (plain.returncode, printed[0]) == (rank.code, printed[1])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for name in ("none.py", "./none"):
        rank = Rank(tmp_path, name)
        assert rank.code == 127
        assert rank.evidence["error"].startswith(f"{name}: no such file (looked for from {tmp_path})")
    (tmp_path / "there").write_text("")
    assert Rank(tmp_path, "./there").code == 126
    rank = Rank(tmp_path, "-m", "no.such")
    assert rank.code == 1
    assert "No module named" in rank.evidence["error"]


def test_a_folder_and_an_archive_are_run_as_python_runs_them(tmp_path: Path) -> None:
    import zipapp

    (folder := tmp_path / "app").mkdir()
    (folder / "__main__.py").write_text("import sys, other; print(__name__, sys.path[0], sys.argv)")
    (folder / "other.py").write_text("")
    zipapp.create_archive(folder, tmp_path / "app.pyz")
    for name in ("app", "app.pyz"):
        plain = subprocess.check_output([sys.executable, name, "x"], cwd=tmp_path, text=True)
        assert Rank(tmp_path, name, "x").output == plain


@pytest.mark.parametrize("on_path", [False, True])
def test_a_folder_does_not_stand_in_for_pythons_modules(on_path: bool, tmp_path: Path) -> None:
    """Not the one that a rank is started in; one that PYTHONPATH names, for the script alone."""
    for name in ("socket", "traceback", "signal", "calendar", "mmap"):
        (tmp_path / f"{name}.py").write_text("print('the folder has it')")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text("import socket; print(socket.__file__)")
    rank = Rank(tmp_path, "tools/train.py", **({"PYTHONPATH": "."} if on_path else {}))
    own = f"the folder has it\n{tmp_path / 'socket.py'}\n"
    assert rank.output == (own if on_path else f"{__import__('socket').__file__}\n")


def test_a_script_imports_what_lies_beside_it(tmp_path: Path) -> None:
    """Though a rank has imported Python's of that name for itself; but not those that Python would find first."""
    (tmp_path / "train.py").write_text(
        "import json, time, os\nprint(json.MINE, hasattr(time, 'MINE'), os.sep)"
    )
    for name in ("json", "time", "os"):
        (tmp_path / f"{name}.py").write_text("MINE = 1")
    assert Rank(tmp_path, "train.py").output == "1 False /\n"


def test_a_program_is_told_of_by_what_torch_has_recorded(tmp_path: Path) -> None:
    """Where a script runs below a shell, what torch's decorator writes is the evidence."""
    path = tmp_path / "one.json"
    assert recorded(path) == {}
    path.write_text(
        '{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "T", "timestamp": "7"}}}'
    )
    assert recorded(path) == {"error": "ValueError: x", "traceback": "T", "at": 7.0}
    path.write_text('{"message": "killed"}')
    assert recorded(path) == {"error": "killed"}
    path.write_text('{"message": {}}')
    assert recorded(path) == {}
