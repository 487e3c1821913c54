"""`airflow-elastic simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from airflow_elastic.cli.cluster.simulate import simulate
from airflow_elastic.cli.main import main
from airflow_elastic.testing.simulator.policies.known import NAMES


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


SMALL = ("--runs", 10, "--days", 0.2, "--seed", 7)


def test_a_table_with_the_seed_and_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "synthetic", *SMALL, "--policy", "static-least", "--policy", "elastic-shared")
    assert code == 0
    lines = out.splitlines()
    assert "10 runs" in lines[0]
    assert lines[0].endswith("seed 7")
    assert [line.split()[0] for line in lines[2:5]] == ["static-least", "elastic-shared", "no"]


def test_its_help_names_each_policy() -> None:
    (text,) = (
        one.help for one in simulate.params if isinstance(one, click.Option) and one.name == "policies"
    )
    assert " | ".join(NAMES) in str(text)


def test_the_seed_by_chance_gives_the_same_figures_again(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("synthetic", "--runs", 10, "--days", 0.2, "--policy", "static-least", "--json")
    first = json.loads(run(capsys, *asked)[1])
    again = json.loads(run(capsys, *asked, "--seed", first["seed"])[1])
    for document in (first, again):
        for figures in document["policies"]:
            del figures["took_seconds"]
    assert first == again
    assert first["policies"][0]["lost"] >= first["bounds"]["lost"]


def test_a_written_trace_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    assert run(capsys, "synthetic", *SMALL, "--write", path)[0] == 0
    asked = ("--policy", "static-most", "--json")
    drawn = json.loads(run(capsys, "synthetic", *SMALL, *asked)[1])
    read = json.loads(run(capsys, path, "--seed", 7, *asked)[1])
    for document in (drawn, read):
        del document["policies"][0]["took_seconds"]
    assert drawn == read


def test_machines_of_any_trace_may_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    run(capsys, "synthetic", *SMALL, "--write", path)
    asked = (path, "--seed", 7, "--policy", "elastic-shared", "--fail-hours", 2, "--json")
    told = json.loads(run(capsys, *asked)[1])
    (figures,) = told["policies"]
    assert told["outages"] > 0
    assert figures["restarts"] > 0
    assert figures["succeeded"] == 10


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "synthetic", "--policy", "best")
    assert (code, "given 'best'; allowed: static-least" in err) == (2, True)
    code, _, err = run(capsys, tmp_path / "none", "--format", "philly")
    assert (code, "there is no such file" in err) == (2, True)
    big = tmp_path / "big.jsonl"
    job = {"name": "a", "submitted_at": 0, "workers": 8, "steps": 9, "curve": [0.1, 1, 0]}
    big.write_text(json.dumps({"trace": "t", "nodes": 1, "gpus": 8}) + "\n" + json.dumps(job))
    code, _, err = run(capsys, big, "--gpus-per-node", 2)
    assert (code, "no job fits on 1 × 2 GPUs; give more by --nodes" in err) == (2, True)
    code, _, err = run(capsys, "synthetic", "--format", "csv")
    assert (code, "allowed: own, philly, helios, pai" in err) == (2, True)
