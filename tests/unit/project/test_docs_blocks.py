"""Each block of the documentation is run or checked, here or by a test that is named here, or has a reason above it."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import yaml

import airflow_elastic.runtime as elastic
from airflow_elastic import __version__
from airflow_elastic.cli.main import cli
from airflow_elastic.engines.api import find_engine
from airflow_elastic.launchers import find_launcher
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.run import RunSpec
from tests.support.runs.attempts import attempt
from tests.support.runs.pages import DOCS, ROOT, Block, blocks
from tests.support.training.loops import shown, whole

#: Languages that a block may have. A block in `text` is the output of the commands before it; tutorials compare it.
LANGUAGES = {"python", "sh", "yaml", "json", "toml", "dockerfile", "text", "mermaid"}

#: The only comments that a block may have above it; tests of clusters create what is marked as `rights`.
NOTES = {"run", "not run", "until", "background", "rights", "generated"}


def where(block: Block) -> tuple[Path, int]:
    return block.page, block.line


LOOPS = {
    where(block) for block in (*shown(), *whole())
}  # tests/unit/runtime/session/test_loops.py, tests/e2e/training/test_loops.py
DAGS = [  # tests/airflow/test_docs_dags.py
    block
    for block in blocks("python")
    if re.search(r"\bDAG\(|^Elastic\w+\(|^@task\.", block.text, re.MULTILINE)
]


def is_tutorial(block: Block) -> bool:
    """tests/e2e/test_tutorials.py runs it."""
    return block.page.parent.name == "tutorials"


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_each_block_has_a_language_and_known_notes(block: Block) -> None:
    assert block.language in LANGUAGES
    assert block.notes.keys() <= NOTES
    assert "not run" not in block.notes or len(block.notes["not run"].split()) >= 2, "say why"


# -- Python --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_each_python_block_is_run_by_a_test_or_says_why_not(block: Block) -> None:
    ast.parse(block.text)
    tests = [
        where(block) in LOOPS,
        block in DAGS,
        is_tutorial(block) and block.title is not None,
        "run" in block.notes,
    ]
    assert any(tests) or "not run" in block.notes, "put <!-- run --> above it, or <!-- not run: REASON -->"


class Mood:
    """A type of a user."""


def supplies(folder: Path) -> dict[str, Any]:
    """What blocks leave out, because readers have it."""
    backbone, head = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(backbone, head)
    return {
        "__name__": "__main__",
        "elastic": elastic,
        "torch": torch,
        "Mood": Mood,
        "model": model,
        "head": head,
        "backbone": backbone,
        "build": lambda: (model, torch.optim.AdamW(model.parameters())),
        "best_rate": lambda run, model, optimizer: 0.1,
        "folder": folder,
    }


@pytest.mark.parametrize("block", [one for one in blocks("python") if "run" in one.notes], ids=str)
def test_a_marked_block_runs(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIRFLOW_ELASTIC_RESUME_PATH", str(tmp_path))
    (tmp_path / "job.yaml").write_text(MANIFEST)
    if "EngineConformance" in block.text:
        (tmp_path / "test_mine.py").write_text(block.text)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_mine.py"]
        done = subprocess.run(
            [*command, "-o", "asyncio_mode=auto", "--rootdir", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout
        return
    names = supplies(tmp_path)

    def saved(session: Session) -> None:
        session.restore(names["model"])
        session.step()
        session.finish(accuracy=1.0)

    def script(session: Session) -> str:
        with monkeypatch.context() as now:
            now.setattr(elastic, "init", lambda: session)
            text = block.text.replace("s3://bucket/runs/digits", str(run))
            exec(compile(text, str(block), "exec"), names)
        return "over"

    try:
        if "load_model" in block.text:  # it reads what a run has saved
            attempt(run, 1, CheckpointPolicy(every_steps=1), saved)
        assert attempt(run, 2, CheckpointPolicy(every_steps=1), script) == "over"
    finally:
        torch.serialization.clear_safe_globals()


MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: fit}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: fit, image: "trainer:1", command: [torchrun, train.py]}]
"""

# -- the shell -----------------------------------------------------------------------------------------------------

#: Programs that blocks may call, beside `airflow-elastic` and `make`; their lines are checked for the shell's grammar.
#: Those of tutorials are run. The others need what the tests of this folder have not: a cluster, docker, an index.
PROGRAMS = {
    *("airflow", "buildah", "curl", "debootstrap", "docker", "git", "kind", "kubectl", "pip", "pre-commit"),
    *(".", "cat", "cd", "cp", "export", "for", "kill", "mkdir", "python", "python3", "rm", "sed", "source"),
    *("grep", "done", "tensorboard", "uv"),
}


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_shell_blocks_are_shell_and_call_known_programs(block: Block) -> None:
    checked = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(block):
        if re.match(r"[A-Za-z_]+=", words[0]):
            continue
        program = words[0].rpartition("/")[2] or words[0]
        if program == "make":
            named = {word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)}
            assert named <= targets, f"there is no make {named - targets}"
        elif program != "airflow-elastic":
            assert program in PROGRAMS, f"{program}: is it a program? Add it to PROGRAMS"


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_commands_exist_with_their_options(block: Block) -> None:
    for name, *arguments in (words[1:] for words in commands(block) if words[0] == "airflow-elastic"):
        command = cli.commands.get(name)
        assert command is not None, f"there is no airflow-elastic {name}"
        try:
            command.make_context(name, list(arguments))
        except click.exceptions.Exit:  # --help
            continue
        except click.ClickException as error:
            raise AssertionError(f"airflow-elastic {name} {arguments}: {error.format_message()}") from None


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, split into words; of several in a line the first."""
    text = re.sub(r"'[^']*'", lambda quoted: quoted[0].replace("\n", " "), block.text.replace("\\\n", " "))
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=[^$]*", words[0]) and len(words) > 1:
            words = words[1:]  # variables in front of a command
        for sign in ("|", "&&", ";", ">", "&"):
            words = words[: words.index(sign)] if sign in words else words
        if words:
            yield words


# -- data ----------------------------------------------------------------------------------------------------------

VERBS = {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
SPEC = {field.name for field in fields(RunSpec)}


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_yaml_is_what_our_own_parsers_take(block: Block) -> None:
    data = yaml.safe_load(block.text)
    assert isinstance(data, dict)
    if "rules" in data:
        for rule in data["rules"]:
            assert rule.keys() == {"apiGroups", "resources", "verbs"}
            assert set(rule["verbs"]) <= VERBS
    elif data.keys() <= SPEC:
        spec = RunSpec.from_dict({"command": ["train.py"], **with_image(data)})
        find_engine(spec.engine).check(spec)
        find_launcher(spec.launcher).check(spec)
    else:
        assert "not run" in block.notes, f"no parser of ours takes {sorted(data.keys() - SPEC)}"


def with_image(data: dict[str, Any]) -> dict[str, Any]:
    """Where a block shows options of pods only, those that it leaves out."""
    options = data.get("engine_options", {})
    if "engine" in data or "command" in data or not {"volumes", "queue", "queueing"} & options.keys():
        return data
    return {**data, "engine": "job", "engine_options": {"image": "trainer:1", **options}}


@pytest.mark.parametrize("block", blocks("json"), ids=str)
def test_json_parses(block: Block) -> None:
    assert isinstance(
        json.loads(block.text), dict
    )  # tests/unit/project/test_docs.py compares them with real ones


@pytest.mark.parametrize("block", blocks("toml"), ids=str)
def test_toml_names_groups_that_we_read(block: Block) -> None:
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert groups.keys() <= ours.keys()


@pytest.mark.parametrize("block", blocks("dockerfile"), ids=str)
def test_dockerfiles_begin_with_an_image_of_this_release(block: Block) -> None:
    lines = [line.split() for line in block.text.splitlines() if line]
    assert {line[0] for line in lines} <= {"FROM", "COPY", "WORKDIR", "RUN", "ENV"}
    assert lines[0][1].removeprefix("airflow-elastic-") in {
        f"{one}:{__version__}" for one in ("trainer", "airflow")
    }


@pytest.mark.parametrize("block", blocks("mermaid"), ids=str)
def test_diagrams_are_drawn_from_the_code(block: Block) -> None:
    """test_docs.py compares what is generated with the code."""
    assert "generated" in block.notes or "not run" in block.notes


def test_output_follows_commands() -> None:
    for page in DOCS.rglob("*.md"):
        languages = [block.language for block in blocks() if block.page == page]
        assert languages[:1] != ["text"], f"{page}: of what is its first block the output?"
