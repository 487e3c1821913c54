"""What a rank says of a script that has failed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_elastic.runtime.rank import _keep, _line


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
    _keep(ValueError("wrong"), "train.py", "/train.py")
    assert json.loads((tmp_path / "one-rank-0.error.json").read_text())["error"] == "ValueError: wrong"
    monkeypatch.setenv("AIRFLOW_ELASTIC_RANK_FILES", str(tmp_path / "none" / "one"))
    _keep(ValueError("wrong"), "train.py", "/train.py")
    assert "could not be written down" in capsys.readouterr().err
