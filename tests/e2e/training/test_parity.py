"""What a script sees of its start is what torchrun or Python shows it, but for a table in docs/reference/process.md.

One script reports some 160 facts; each way to start it is compared with the plain one, fact by fact. The table is read
from the docs: what differs and is not in it fails, and so does what is in it and does not differ.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.machine.patience import until
from tests.support.training.parity import ARGUMENTS, COMMAND, Facts, Ground

ROOT = Path(__file__).parents[3]
TORCHRUN = Path(sys.executable).with_name("torchrun")


@dataclass(frozen=True)
class Row:
    """A difference that is meant."""

    fact: str
    start: str

    def __str__(self) -> str:
        return f"{self.fact} ({self.start})"


def _table() -> list[Row]:
    text = (ROOT / "docs/reference/process.md").read_text()
    section = text.split("\n## As torchrun would\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+?) \| .+? \| .+? \|$", section, re.MULTILINE)
    starts = [
        (fact, start)
        for facts, starts in rows
        for start in starts.split(", ")
        for fact in re.findall(r"`(.+?)`", facts)
    ]
    return [Row(*one) for one in starts]


TABLE = _table()
_used: set[Row] = set()
_compared: set[str] = set()


def compare(ours: Facts, theirs: Facts, *starts: str, **meant: str) -> None:
    """Compare, fact by fact; `starts` says what of the table holds, `meant` what the environment has otherwise."""
    theirs = {**theirs, **{f"env.{name}": value for name, value in meant.items()}}
    _compared.update(("all", *starts))
    differ = {fact for fact in ours.keys() | theirs.keys() if ours.get(fact) != theirs.get(fact)} - {"warm"}
    rows = [row for row in TABLE if row.start in ("all", *starts) and row.fact in differ]
    _used.update(rows)
    odd = {fact: (ours.get(fact), theirs.get(fact)) for fact in sorted(differ - {row.fact for row in rows})}
    assert odd == {}, "\n".join(
        f"{fact}: ours {one!r}, plain {other!r}" for fact, (one, other) in odd.items()
    )


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground.lay(tmp_path_factory.mktemp("the ground"))


@pytest.fixture(scope="module")
def torchrun(ground: Ground) -> dict[str, Facts]:
    command = (TORCHRUN, "--nproc-per-node=1", "--max-restarts=1")
    return ground.plain("torchrun", "project", *command, "tools/facts.py")


@pytest.fixture(scope="module")
def two(ground: Ground) -> dict[str, Facts]:
    """Two ranks of plain torchrun; which of them reads what is typed is a matter of luck."""
    command = (TORCHRUN, "--nproc-per-node=2", "--max-restarts=0")
    return ground.plain("two", "project", *command, "tools/facts.py")


@pytest.mark.parametrize("module", [False, True])
def test_a_rank_alone(module: bool, ground: Ground) -> None:
    """The short form: a rank that is started afresh, without agent and controller; the other one from a pipe, or in a
    terminal, where standard input holds a line.
    """
    words, folder = (["-m", "package.facts"], "modules") if module else (["tools/facts.py"], "project")
    told = ground.plain(f"plain-{module}", folder, sys.executable, *words, in_terminal=module)
    theirs = told["None-None-0"]
    assert theirs["stdin.read"] == "typed\n"
    assert [theirs[f"stream.{number}.isatty"] for number in range(3)] == 3 * [module]
    compare(ground.alone(f"alone-{module}", folder, *words), theirs, "python", "fresh")


def test_two_ranks_as_their_agent_starts_them(ground: Ground, two: dict[str, Facts]) -> None:
    """The short form for the launcher `torchrun`: without controller, and by no fork."""
    ours = ground.ranks("by-agent", "project", "tools/facts.py", procs=2)
    compare_two(ours, two, "fresh")


def compare_two(ours: dict[str, Facts], theirs: dict[str, Facts], start: str) -> None:
    assert theirs["0-None-1"]["env.LOCAL_RANK"] == "1"
    assert theirs["0-None-1"]["env.LOCAL_WORLD_SIZE"] == "2"
    for rank in (0, 1):
        compare(ours[f"1-1-{rank}"], theirs[f"0-None-{rank}"], "torchrun", start)


@pytest.fixture(scope="module")
def run(ground: Ground) -> dict[str, Facts]:
    """One run: its first rank, forked; one that is restarted in its place; and those after a scale step."""
    words = ("--workers", "1", "--max", "2", "--backoff-limit", "1", "--", "tools/facts.py")
    with ground.run("run", "project", *words) as process:
        folder = ground.facts("run")
        until(lambda: (folder / "2-2-0.json").exists() or process.poll() is not None, "the second attempt")
        subprocess.run([COMMAND, "scale", f"{ground.root}/run-run", "2"], check=False, capture_output=True)
    assert process.returncode == 0, ground.output("run")
    return ground.told("run")


@pytest.mark.slow
def test_a_first_rank(run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours = run["1-1-0"]
    assert len(ours) > 150
    compare(ours, torchrun["0-None-0"], "torchrun", "fork" if ours["warm"] else "fresh")


@pytest.mark.slow
def test_a_rank_that_is_restarted(run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours, theirs = run["2-2-0"], torchrun["1-None-0"]
    theirs.pop("the end")  # ours is ended by the scale step
    assert ours["env.TORCHELASTIC_RESTART_COUNT"] == theirs["env.TORCHELASTIC_RESTART_COUNT"] == "1"
    compare(ours, theirs, "torchrun", "fork" if ours["warm"] else "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_ranks_after_a_scale_step(rank: str, run: dict[str, Facts], torchrun: dict[str, Facts]) -> None:
    ours, theirs = run[f"2-3-{rank}"], {**torchrun["1-None-0"]}
    theirs.pop("the end", None)
    ours.pop("the end", None)
    world = dict.fromkeys(("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"), "2")
    world |= dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK"), rank)
    compare(ours, theirs, "torchrun", "fork" if ours["warm"] else "fresh", **world)


@pytest.mark.slow
def test_two_ranks_of_a_worker(ground: Ground, two: dict[str, Facts]) -> None:
    with ground.run(
        "procs", "project", "--procs", "2", "--backoff-limit", "0", "--", "tools/facts.py"
    ) as process:
        pass
    assert process.returncode == 0, ground.output("procs")
    compare_two(ours := ground.told("procs"), two, "fork" if ours["1-1-0"]["warm"] else "fresh")


@pytest.mark.slow
def test_two_ranks_of_a_pod(ground: Ground, two: dict[str, Facts]) -> None:
    """Forks of the pod's first process, which has opened the run's storage before it has imported torch."""
    ours = ground.pod("pod", "project", "tools/facts.py", procs=2)
    assert ours["1-1-0"]["warm"], ground.output("pod")
    for facts in ours.values():
        facts.pop("env.TMPDIR")  # of this pod alone
    compare_two(ours, two, "fork")


@pytest.mark.slow
def test_a_module_with_a_cold_start(ground: Ground) -> None:
    words = (sys.executable, "-P", "-m", "torch.distributed.run", "--nproc-per-node=1", "--max-restarts=0")
    theirs = ground.plain("torchrun-m", "modules", *words, "-m", "package.facts")
    (ground.root / "spec.yaml").write_text(
        "launcher_options: {start: cold}\nrestart: {policy: Never, backoff_limit: 0}\n"
        f"command: {json.dumps(['-m', 'package.facts', *ARGUMENTS])}\n"
    )
    with ground.run("module", "modules", "--spec", "../spec.yaml", "--", "-m", "package.facts"):
        pass
    ours = ground.told("module")["1-1-0"]
    assert not ours["warm"], ground.output("module")
    compare(ours, theirs["0-None-0"], "torchrun", "fresh", "module")


@pytest.mark.slow
def test_the_launcher_python(ground: Ground) -> None:
    """Both in a terminal."""
    theirs = ground.plain("python", "project", sys.executable, "tools/facts.py", in_terminal=True)
    words = ("--launcher", "python", "--restart-policy", "Never", "--", "tools/facts.py")
    with ground.run("plain", "project", *words, in_terminal=True):
        pass
    assert "failed" in ground.output("plain")
    compare(ground.told("plain")["1-1-0"], theirs["None-None-0"], "python", "fresh")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun-plain", "accelerate"])
def test_launchers_that_are_programs_of_others(launcher: str, ground: Ground) -> None:
    """The same command is typed: between it and the script there is nothing of ours. One of them in a terminal."""
    own = {
        "torchrun-plain": ("torchrun", "--nnodes=1", "--master-port=0", "--max-restarts=0"),
        "accelerate": (
            *("accelerate", "launch", "--cpu", "--num_machines=1", "--num_processes=1"),
            *("--mixed_precision=no", "--dynamo_backend=no"),
        ),
    }[launcher]
    program = Path(sys.executable).with_name(own[0])
    in_terminal = launcher == "accelerate"
    theirs = ground.plain(
        f"by-{launcher}", "project", program, *own[1:], "tools/facts.py", in_terminal=in_terminal
    )
    words = ("--launcher", launcher, "--restart-policy", "Never", "--", "tools/facts.py")
    with ground.run(launcher, "project", *words, in_terminal=in_terminal):
        pass
    (ours,), (plain,) = ground.told(launcher).values(), theirs.values()
    assert "failed" in ground.output(launcher)
    for facts in (ours, plain):  # in folders whose names end by chance
        facts["env.TORCHELASTIC_ERROR_FILE"] = re.sub(
            r"_\w{8}/", "/", str(facts.get("env.TORCHELASTIC_ERROR_FILE"))
        )
    compare(ours, plain, launcher)


@pytest.fixture(scope="module", autouse=True)
def _every_row_is_needed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    started = {row.start for row in TABLE}
    if started <= _compared and not request.session.testsfailed:
        assert [str(row) for row in TABLE if row not in _used] == []
