"""How grave an event is stands where it is read: in `events`, as text and as JSON, and in the file `run` writes to."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from rich.text import Text

from airflow_elastic.adapters.records.journal import Journal
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.console import QuietConsole
from airflow_elastic.cli.drive.progress_lines import ProgressLines
from airflow_elastic.cli.inspect.events import events
from airflow_elastic.core.machine import create, evolve
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import RestartPolicy
from tests.support.builders import created, lost, spec

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_elastic.core.state import RunState

#: A run that loses a worker and goes on, loses it again, and has no restart left.
TOLD: list[tuple[ev.Event, str, str]] = [
    (created(spec(restart=RestartPolicy(backoff_limit=1))), "INFO", "run created"),
    (ev.AttemptSubmitted(1.0, 1, "a1"), "INFO", "attempt 1 submitted"),
    (ev.WorkersEnded(2.0, 1, lost()), "WARNING", "was lost"),
    (ev.AttemptGone(3.0, 1), "WARNING", "attempt 1 is gone: attempt 2 follows"),
    (ev.AttemptSubmitted(4.0, 2, "a2"), "INFO", "attempt 2 submitted"),
    (ev.WorkersEnded(5.0, 2, lost()), "WARNING", "was lost"),
    (ev.AttemptGone(6.0, 2), "WARNING", "attempt 2 is gone"),
    (ev.RunEnded(7.0, "failed", "all restarts are used"), "ERROR", "run ended: failed"),
]


#: Whether it is a terminal, and what the environment says of it.
KINDS = {
    "file": (False, {}),
    "terminal": (True, {"TERM": "xterm"}),
    "no_color": (True, {"TERM": "xterm", "NO_COLOR": "1"}),
    "dumb": (True, {"TERM": "dumb"}),
}


def words(line: str) -> str:
    """What precedes the sentence, behind the moment."""
    return next((level for level in ("WARNING", "ERROR") if f"  {level}  " in line), "INFO")


def check(lines: list[str]) -> None:
    assert len(lines) == len(TOLD)
    for line, (_, level, sentence) in zip(lines, TOLD, strict=True):
        assert (words(line), sentence in line) == (level, True), line


@pytest.fixture
def uri(tmp_path: Path) -> str:
    journal = Journal(open_store(str(tmp_path)))
    for number, (event, _, _) in enumerate(TOLD):
        assert journal.append(number, event)
    return str(tmp_path)


def test_in_events_as_text(uri: str) -> None:
    check(CliRunner().invoke(events, [uri]).stdout.splitlines())


def test_in_events_as_json(uri: str) -> None:
    entries = [json.loads(line) for line in CliRunner().invoke(events, [uri, "--json"]).stdout.splitlines()]
    assert [entry["level"] for entry in entries] == [level for _, level, _ in TOLD]
    assert all("WARNING" not in entry["sentence"] for entry in entries)


@pytest.mark.parametrize(("terminal", "variables"), KINDS.values(), ids=KINDS)
def test_in_what_run_writes(terminal: bool, variables: dict[str, str], uri: str) -> None:
    """A terminal shows it by a colour; a file, and a terminal without colours, by a word."""
    console = QuietConsole(file=StringIO(), width=200, force_terminal=terminal, _environ=variables)
    tale, state = ProgressLines(console, open_store(uri)), None
    for event, _, _ in TOLD:
        state = _told(tale, event, state)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    if "\x1b[33m" in console.file.getvalue():  # type: ignore[attr-defined]
        assert terminal
        assert variables == KINDS["terminal"][1]
        colours = ["\x1b[33m" in line for line in lines], ["\x1b[1;31m" in line for line in lines]
        expected = [[level == one for _, level, _ in TOLD] for one in ("WARNING", "ERROR")]
        assert list(colours) == expected
        assert "WARNING" not in "".join(lines)
    else:
        assert variables != KINDS["terminal"][1] or not terminal
        check([Text.from_ansi(line).plain for line in lines])


def _told(tale: ProgressLines, event: ev.Event, before: RunState | None) -> RunState:
    state = create(event) if before is None else evolve(before, event)
    tale.on_event(event, before, state)
    return state
