"""What a script can see of its start is what torchrun, or Python, shows it, but for a table in docs/script.md.

One script reports some 160 facts; each way to start it is compared with the plain one, fact by fact. The table is read
from the docs: what differs and is not in it fails, and so does what is in it and does not differ.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.launchers import PYTHON, Place
from airflow_elastic.spec.run import RunSpec
from tests.support.cli import SCRIPTS
from tests.support.patience import PATIENCE_SECONDS, until

COMMAND = Path(sys.executable).with_name("airflow-elastic")
ROOT = Path(__file__).parents[2]
ARGUMENTS = ("--lr", "0.1", "two words", "ü", "")

#: Modules that only a script may import which is started beside them: nothing of ours.
TRAPS = ("tokenize", "code", "calendar", "dataclasses", "torch")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Ground:
    """Folders in which runs are started: scripts in a folder below traps, and the same as a package."""

    root: Path

    def facts(self, name: str) -> Path:
        (folder := self.root / name).mkdir(exist_ok=True)
        return folder

    def environment(self, name: str) -> dict[str, str]:
        here = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FACTS", "COV_"))}
        # pytest has told readline how wide its window is, which only those know that C starts.
        here = {k: v for k, v in here.items() if k not in ("COLUMNS", "LINES")}
        return {**here, "FACTS": str(self.facts(name)), "FACTS_BASE": " ".join(here)}

    def plain(self, name: str, folder: str, *command: str | Path) -> dict[str, Facts]:
        """Start the script without us."""
        with open(self.root / f"{name}.log", "wb") as log:
            subprocess.run(
                [*command, *ARGUMENTS],
                cwd=self.root / folder,
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE_SECONDS,
            )
        return self.told(name)

    def start(self, name: str, folder: str, *words: str) -> subprocess.Popen[str]:
        """Start a run of ours."""
        return subprocess.Popen(
            [COMMAND, "run", "--no-output", "--uri", f"{self.root / name}-run", *words, *ARGUMENTS],
            cwd=self.root / folder,
            env=self.environment(name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def alone(self, name: str, folder: str, *command: str) -> Facts:
        """Start one rank as an agent does, without any."""
        world = dict.fromkeys(("RANK", "LOCAL_RANK"), "0") | dict.fromkeys(
            ("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "1"
        )
        more = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        attempt = {"AIRFLOW_ELASTIC_ATTEMPT": "1", "AIRFLOW_ELASTIC_GENERATION": "1"}
        spec = RunSpec((*command, *ARGUMENTS), launcher="python")
        with open(self.root / f"{name}.log", "wb") as log:
            subprocess.run(
                PYTHON.command(spec, Place(sys.executable, 0, 1, "", 0)),
                cwd=self.root / folder,
                env={**self.environment(name), **world, **more, **attempt},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=PATIENCE_SECONDS,
                start_new_session=True,
            )
        return self.told(name)["1-1-0"]

    def told(self, name: str) -> dict[str, Facts]:
        found = {}
        for path in sorted(self.facts(name).glob("*.json")):
            found[path.stem] = json.loads(path.read_text())
            if end := path.with_suffix(".end").read_text():
                found[path.stem]["the end"] = end.splitlines()
        if not found:
            log = self.root / f"{name}.log"
            pytest.fail(f"nothing was told: {log.read_text() if log.exists() else 'no log'}")
        return found


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    root = tmp_path_factory.mktemp("the ground")
    scripts = SCRIPTS / "parity"
    shutil.copytree(scripts, root / "project" / "tools")
    for name in TRAPS:
        (root / "project" / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the project')")
    shutil.copytree(scripts, root / "modules" / "package")
    (root / "modules" / "package" / "__init__.py").write_text("")
    return Ground(root)


@pytest.fixture(scope="module")
def torchrun(ground: Ground) -> dict[str, Facts]:
    command = (Path(sys.executable).with_name("torchrun"), "--nproc-per-node=1", "--max-restarts=1")
    return ground.plain("torchrun", "project", *command, "tools/facts.py")


@dataclass(frozen=True)
class Row:
    """A difference that is meant."""

    fact: str
    start: str

    def __str__(self) -> str:
        return f"{self.fact} ({self.start})"


def _table() -> list[Row]:
    text = (ROOT / "docs" / "script.md").read_text()
    section = text.split("### As torchrun would\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \| .+? \| .+? \| .+? \|$", section, re.MULTILINE)
    starts = [
        (fact, start)
        for facts, starts in rows
        for start in starts.split(", ")
        for fact in re.findall(r"`(.+?)`", facts)
    ]
    return [Row(*one) for one in starts]


TABLE = _table()
_used: set[Row] = set()


def compare(ours: Facts, theirs: Facts, *starts: str, **meant: str) -> None:
    """Compare, fact by fact; `starts` says what of the table holds, `meant` what the environment has otherwise."""
    theirs = {**theirs, **{f"env.{name}": value for name, value in meant.items()}}
    differ = {fact for fact in ours.keys() | theirs.keys() if ours.get(fact) != theirs.get(fact)} - {"warm"}
    rows = [row for row in TABLE if row.start in ("all", *starts) and row.fact in differ]
    _used.update(rows)
    odd = {fact: (ours.get(fact), theirs.get(fact)) for fact in sorted(differ - {row.fact for row in rows})}
    assert odd == {}, "\n".join(
        f"{fact}: ours {one!r}, plain {other!r}" for fact, (one, other) in odd.items()
    )


@pytest.mark.parametrize("module", [False, True])
def test_a_rank_alone(module: bool, ground: Ground) -> None:
    """The short form: a rank that is started afresh, without agent and controller."""
    words, folder = (["-m", "package.facts"], "modules") if module else (["tools/facts.py"], "project")
    theirs = ground.plain(f"plain-{module}", folder, sys.executable, *words)["None-None-0"]
    compare(ground.alone(f"alone-{module}", folder, *words), theirs, "python", "fresh")


@pytest.fixture(scope="module")
def run(ground: Ground) -> dict[str, Facts]:
    """One run: its first rank, born of a spare; one that is restarted in its place; and those after a scale step."""
    words = ("--workers", "1", "--max", "2", "--backoff-limit", "1", "--", "tools/facts.py")
    process = ground.start("run", "project", *words)
    try:
        folder = ground.facts("run")
        until(lambda: (folder / "2-2-0.json").exists() or process.poll() is not None, "the second attempt")
        subprocess.run([COMMAND, "scale", f"{ground.root}/run-run", "2"], check=False, capture_output=True)
        output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, output
    finally:
        process.kill()
    return ground.told("run")


@pytest.mark.slow
def test_a_first_rank(run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours = run["1-1-0"]
    assert len(ours) > 150
    compare(ours, torchrun["0-None-0"], "torchrun", "spare" if ours["warm"] else "fresh")


@pytest.mark.slow
def test_a_rank_that_is_restarted(run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours, theirs = run["2-2-0"], torchrun["1-None-0"]
    theirs.pop("the end")  # ours is ended by the scale step
    assert ours["env.TORCHELASTIC_RESTART_COUNT"] == theirs["env.TORCHELASTIC_RESTART_COUNT"] == "1"
    compare(ours, theirs, "torchrun", "spare" if ours["warm"] else "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_after_a_scale_step(rank: str, run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours, theirs = run[f"2-3-{rank}"], {**torchrun["1-None-0"]}
    theirs.pop("the end", None)
    ours.pop("the end", None)
    world = dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "2")
    world |= dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), rank)
    compare(ours, theirs, "torchrun", "spare" if ours["warm"] else "fresh", **world)


@pytest.mark.slow
def test_a_module_without_spares(ground: Ground) -> None:
    words = (sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=0")
    theirs = ground.plain("torchrun-m", "modules", *words, "-m", "package.facts")
    (ground.root / "spec.yaml").write_text(
        "launcher_options: {spares: false}\nrestart: {policy: Never, backoff_limit: 0}\n"
        f"command: {json.dumps(['-m', 'package.facts', *ARGUMENTS])}\n"
    )
    process = ground.start("module", "modules", "--spec", "../spec.yaml", "--", "-m", "package.facts")
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    ours = ground.told("module")["1-1-0"]
    assert not ours["warm"], output
    compare(ours, theirs["0-None-0"], "torchrun", "fresh", "module")


@pytest.mark.slow
def test_the_launcher_python(ground: Ground) -> None:
    theirs = ground.plain("python", "project", sys.executable, "tools/facts.py")
    process = ground.start(
        "plain", "project", "--launcher", "python", "--restart-policy", "Never", "--", "tools/facts.py"
    )
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert "failed" in output
    compare(ground.told("plain")["1-1-0"], theirs["None-None-0"], "python", "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun-plain", "accelerate"])
def test_launchers_that_are_programs_of_others(launcher: str, ground: Ground) -> None:
    """The same command is typed: between it and the script there is nothing of ours."""
    own = {
        "torchrun-plain": ("torchrun", "--nnodes=1", "--master-port=0", "--max-restarts=0"),
        "accelerate": (
            *("accelerate", "launch", "--cpu", "--num_machines=1", "--num_processes=1"),
            *("--mixed_precision=no", "--dynamo_backend=no"),
        ),
    }[launcher]
    program = Path(sys.executable).with_name(own[0])
    theirs = ground.plain(f"by-{launcher}", "project", program, *own[1:], "tools/facts.py")
    words = ("--launcher", launcher, "--restart-policy", "Never", "--", "tools/facts.py")
    output, _ = ground.start(launcher, "project", *words).communicate(timeout=PATIENCE_SECONDS)
    (ours,), (plain,) = ground.told(launcher).values(), theirs.values()
    assert "failed" in output
    for facts in (ours, plain):  # in folders whose names end by chance
        facts["env.TORCHELASTIC_ERROR_FILE"] = re.sub(
            r"_\w{8}/", "/", str(facts.get("env.TORCHELASTIC_ERROR_FILE"))
        )
    compare(ours, plain, launcher)


@pytest.fixture(scope="module", autouse=True)
def _every_row_is_needed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    ran = sum(item.module is request.module for item in request.session.items)
    if ran >= 10 and not request.session.testsfailed:
        assert [str(row) for row in TABLE if row not in _used] == []
