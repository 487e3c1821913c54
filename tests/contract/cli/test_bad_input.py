"""Bad input: exit code 2, one sentence that teaches, no traceback, and nothing created."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.main import cli, main
from airflow_elastic.control.runs import start_run
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.cli import COUNT

RUN = ("run", "--uri", "new")
SCRIPT = ("--", COUNT, "1")

FILES = {
    "empty.yaml": b"",
    "norule.yaml": b"command: [t.py]\nscaling:\n  policy:\n    capacity:\n    done_by: 18:00\n",
    "rule.yaml": b"command: [t.py]\nworkers: {count: 2, max: 4}\nscaling: {policy: {capcity: {}}}\n",
    "comment.yaml": b"# nothing\n",
    "broken.yaml": b"command: [train.py\nname: x\n",
    "binary.yaml": bytes(range(256)),
    "nul.yaml": b"command: [a\0b]\n",
    "list.yaml": b"- train.py\n",
    "word.yaml": b"train.py\n",
    "good.yaml": b"command: [count.py]\nworkers: {count: 3}\n",
    "cleanup.yaml": b"command: [count.py]\ncleanup: Some\n",
    "typo.yaml": b"command: [count.py]\nworkres: {count: 2}\n",
    "twice.yaml": b"command: [count.py]\nworkers:\n  count: 2\n  count: 3\n",
    "again.yaml": b"name: x\ncommand: [count.py]\n'name': y\n",
    "type.yaml": b"command: [count.py]\nworkers: {count: two}\n",
    "group.yaml": b"command: [count.py]\nworkers: 2\n",
    "engine.yaml": b"command: [count.py]\nengine: warp\n",
    "nocommand.yaml": b"name: x\n",
}

CASES = {
    "nothing to run": (("run",), "there is nothing to run"),
    "a URI without a run": (RUN, "holds no run to carry on"),
    "an empty URI": (("run", "--uri", "", *SCRIPT), "--uri is empty"),
    "a folder that cannot be made": (("run", "--uri", "/proc/x", *SCRIPT), "no folder can be made there"),
    "another kind of URI": (("run", "--uri", "ftp://x/y", *SCRIPT), "there is no store for ftp://"),
    "a file where the folder would be": (
        ("run", "--uri", "word.yaml", *SCRIPT),
        "a file is where a folder has to be",
    ),
    "an unknown engine": (
        (*RUN, "--engine", "warp", *SCRIPT),
        "airflow-elastic: --engine: given 'warp'; allowed: one of",
    ),
    "an unknown launcher": ((*RUN, "--launcher", "torchrn", *SCRIPT), "did you mean torchrun?"),
    "an unknown engine option": (
        (*RUN, "--engine-option", "gpu=1", *SCRIPT),
        "--engine-option gpu: given '1'",
    ),
    "an unknown value of a launcher option": (
        (*RUN, "--launcher-option", "start=warm", *SCRIPT),
        "--launcher-option start: given 'warm'; allowed: ",
    ),
    "a standby worker without another one": (
        (*RUN, "--standby", "1", *SCRIPT),
        "--standby: given 1; allowed: 0: a run that loses its only worker begins a new job",
    ),
    "an unknown option": ((*RUN, "--wrokers", "2", *SCRIPT), "No such option '--wrokers'"),
    "an option of the script before --": (
        (*RUN, "count.py", "--epochs", "1"),
        "write the script and its options after --: `airflow-elastic run",
    ),
    "an unknown command": (("rnu",), "No such command 'rnu'"),
    "no number": ((*RUN, "--workers", "two", *SCRIPT), "'two' is not a valid integer"),
    "more workers than any cluster has": (
        (*RUN, "--workers", "99999999999", *SCRIPT),
        "--workers: given 99999999999; allowed: at most 10000: Kubernetes runs no more pods of one job",
    ),
    "as many in a scale step": (
        (*RUN, "--scale-at", "5=99999999999", *SCRIPT),
        "--scale-at 5=99999999999: given 99999999999; allowed: at most 10000: Kubernetes",
    ),
    "more digits than Python reads": ((*RUN, "--workers", "9" * 5000, *SCRIPT), "is not a valid integer"),
    "a time that is none": (
        ("stop", "new", "--wait", "--timeout", "nan"),
        "'--timeout': given nan; allowed: a finite number greater than 0",
    ),
    "a time without an end": (("checkpoint", "new", "--wait", "--timeout", "inf"), "'--timeout': given inf"),
    "a time before now": (
        ("stop", "new", "--wait", "--timeout", "-1"),
        "'--timeout': given -1.0; allowed: a",
    ),
    "no time": (("stop", "new", "--wait", "--timeout", "soon"), "'soon' is not a valid number"),
    "a rank of more digits than Python reads": (
        ("logs", "new", "--rank", "9" * 5000),
        "is not a valid integer",
    ),
    "no workers": ((*RUN, "--workers", "0", *SCRIPT), "--workers: given 0"),
    "more than the most": (
        (*RUN, "--workers", "3", "--max", "2", *SCRIPT),
        "--max: given 2; allowed: at least --workers, which is 3",
    ),
    "a scale step too far": (
        (*RUN, "--scale-at", "5=9", *SCRIPT),
        "--scale-at 5=9: given 9; allowed: an integer from 1 to 1; raise --max for more",
    ),
    "bounds the wrong way round": (
        (*RUN, "--min", "5", "--max", "2", *SCRIPT),
        "airflow-elastic: --min: given 5; allowed: at most --max, which is 2\n",
    ),
    "a bound beside a file": (
        (*RUN, "--spec", "good.yaml", "--max", "2"),
        "airflow-elastic: --max: given 2; allowed: at least workers.count, which is 3",
    ),
    "options and a file": (
        (*RUN, "--spec", "cleanup.yaml", "--keep", "0"),
        "--keep: given 0; allowed: an integer, at least 1; cleanup.yaml: cleanup: given 'Some'",
    ),
    "a scale step at no step": ((*RUN, "--scale-at", "x=1", *SCRIPT), "--scale-at x=1: given 'x'"),
    "a restart policy": ((*RUN, "--restart-policy", "Maybe", *SCRIPT), "'Maybe' is not one of"),
    "an environment without a value": ((*RUN, "--env", "A", *SCRIPT), "not of the form K=V"),
    "our own environment": ((*RUN, "--env", "AIRFLOW_ELASTIC_X=1", *SCRIPT), "any name but our own"),
    "a secret that is not there": (
        (*RUN, "--secret", "TOKEN=env:NO_SUCH_VARIABLE", *SCRIPT),
        "the environment variable NO_SUCH_VARIABLE, which is not set",
    ),
    "a script that is not there": ((*RUN, "--", "nothing.py"), "there is no such script"),
    "states to keep on no disk": (
        (*RUN, "--disk-keep", "5", *SCRIPT),
        "--disk-keep: given 5; allowed: with --disk",
    ),
    "a disk that is not there": (
        (*RUN, "--disk", "/no/disk", *SCRIPT),
        "there is no folder /no/disk",
    ),
    "a folder that is not there": ((*RUN, "--working-dir", "nowhere", "--", "x"), "--working-dir: given"),
    "a name nobody can use": ((*RUN, "--name", "a b", *SCRIPT), "name: given 'a b'"),
    "no spec file": ((*RUN, "--spec", "missing.yaml"), "missing.yaml: no such file"),
    "a folder as a spec file": ((*RUN, "--spec", "."), "is a directory"),
    "an empty spec file": ((*RUN, "--spec", "empty.yaml"), "empty.yaml: it is empty"),
    "a comment as a spec file": ((*RUN, "--spec", "comment.yaml"), "comment.yaml: it is empty"),
    "a broken spec file": ((*RUN, "--spec", "broken.yaml"), "broken.yaml: it is no YAML: line 2, column 5"),
    "a binary spec file": ((*RUN, "--spec", "binary.yaml"), "binary.yaml: it is no text"),
    "a spec file with a NUL": ((*RUN, "--spec", "nul.yaml"), "nul.yaml: it is no YAML"),
    "a list as a spec file": ((*RUN, "--spec", "list.yaml"), "list.yaml: it holds a list"),
    "a word as a spec file": ((*RUN, "--spec", "word.yaml"), "word.yaml: it holds a single value"),
    "a key given twice": (
        (*RUN, "--spec", "twice.yaml"),
        "twice.yaml: it is no YAML: line 4, column 3: the key 'count' is given a second time, first in line 3",
    ),
    "a key given twice by another spelling": (
        (*RUN, "--spec", "again.yaml"),
        "the key 'name' is given a second",
    ),
    "a mistyped field": ((*RUN, "--spec", "typo.yaml"), "did you mean workers?"),
    "a rule without a value": (
        (*RUN, "--spec", "norule.yaml"),
        "norule.yaml: scaling.policy.capacity: it is empty; write `capacity: {}` for its defaults, or leave it out",
    ),
    "a mistyped rule": ((*RUN, "--spec", "rule.yaml"), "rule.yaml: scaling.policy.capcity: there is no such"),
    "an unknown policy of the simulator": (
        ("simulate", "synthetic", "--policy", "static"),
        "--policy: given 'static'; allowed: static-least, ",
    ),
    "a trace that is not there": (
        ("simulate", "cluster_job_log"),
        "cluster_job_log: there is no such file; give the path of a trace, or `synthetic`",
    ),
    "a value of another type": ((*RUN, "--spec", "type.yaml"), "type.yaml: workers.count: given 'two'"),
    "a number for a group": ((*RUN, "--spec", "group.yaml", "--max", "3"), "group.yaml: workers: given 2"),
    "what that number could be": ((*RUN, "--spec", "group.yaml"), "standby, such as {count: 2}"),
    "a specification for a script": ((*RUN, "good.yaml"), "with --spec good.yaml"),
    "an unknown engine in a file": ((*RUN, "--spec", "engine.yaml"), "given 'warp'"),
    "a spec file without a command": ((*RUN, "--spec", "nocommand.yaml"), "nocommand.yaml: command"),
    "rendering nothing": (("render", "missing.yaml"), "missing.yaml: no such file"),
    "rendering a typo": (("render", "typo.yaml"), "did you mean workers?"),
    "rendering for no engine": (("render", "--engine", "warp", "list.yaml"), "it holds a list"),
    "rendering for an unknown engine": (("render", "engine.yaml"), "engine.yaml: engine: given 'warp'"),
    "pruning all": (("prune", "new", "--keep", "0"), "given 0; allowed: an integer, at least 1"),
    "pruning without a number": (("prune", "new"), "Missing option '--keep'"),
    "too many words": (("status", "new", "more"), "unexpected extra argument"),
    **{
        f"{command} where there is no run": ((command, "new", *more), "holds no run")
        for command, *more in (
            *(("status",), ("status", "--json"), ("events",), ("events", "--follow"), ("logs",), ("verify",)),
            *(
                ("scale", "2"),
                ("stop",),
                ("stop", "--wait"),
                ("checkpoint", "--wait"),
                ("prune", "--keep", "1"),
            ),
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_told_in_one_sentence_and_nothing_is_created(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = CASES[case]
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "count.py").touch()
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr()
    assert stop.value.code == 2, told
    assert expected in told.err
    assert told.err.count("\n") == 1, told.err
    assert told.err.startswith("airflow-elastic: ")
    assert "Traceback" not in told.err
    assert told.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def commands(group: click.Group, *above: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Each command, with those below it, and the words that it begins with."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *above, name)
        else:
            yield (*above, name), command


def numbers() -> Iterator[Any]:
    """Each place of a command where a number is typed, as words that have far too large a one there."""
    for words, command in commands(cli):
        for place in command.params:
            if place.type.name not in ("integer", "float", "number", "integer range", "float range"):
                continue
            given: list[str] = list(RUN[1:]) if words == ("run",) else []
            for one in command.params:
                if one is place:
                    option = [one.opts[-1]] if isinstance(one, click.Option) else []
                    given += [*option, str(10**30)]
                elif isinstance(one, click.Argument) and words != ("run",):
                    given.append("new")
                elif one.required and isinstance(one, click.Option):
                    given += [one.opts[-1], "1"]
            behind = SCRIPT if words == ("run",) else ()
            yield pytest.param((*words, *given, *behind), id=" ".join((*words, str(place.name))))


@pytest.mark.parametrize("words", [*numbers()])
def test_no_number_that_is_typed_may_be_any(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "count.py").touch()
    if words[0] == "scale":
        start_run(open_store(str(tmp_path / "new")), RunSpec(("count.py",)), engine=FakeEngine())
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    told = capsys.readouterr().err
    assert stop.value.code == 2, told
    assert re.search(r"allowed: (at most [0-9]+: |a finite number|an integer from 1 to 1)", told), told
    assert "Traceback" not in told


def test_a_secret_is_never_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for given in ("hunter2", "TOKEN=hunter2", "TOKEN=hunter2:x", "TOKEN=file"):
        with pytest.raises(SystemExit) as stop:
            main([*RUN, "--secret", given, *SCRIPT])
        assert stop.value.code == 2
        assert "hunter2" not in capsys.readouterr().err


def test_every_command_shows_an_example() -> None:
    assert {"run", "scale", "stop", "checkpoint", "status", "events", "logs"} <= set(cli.commands)
    for name in cli.commands:
        shown = CliRunner().invoke(cli, [name, "--help"])
        assert shown.exit_code == 0
        assert f"\n    airflow-elastic {name} " in shown.output, shown.output
