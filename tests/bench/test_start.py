"""A start, and the memory of ranks, of a worker with one rank and with four: ours and torchrun's, in turns.

Once on a node that has run before: all bytecode is there. Once as the first time: there is no bytecode at all, so
each system compiles what it imports, torch included, and its later processes read what the earlier ones have written.
Files come from the page cache in both, as only an administrator can empty that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.support.figures import count, heading, median, spread, verdict

SCRIPT = Path(__file__).parent / "scripts/begin.py"

#: The goals, over torchrun's: seconds until the first step, on a node that has run before and the first time, and
#: memory that a rank shares with no other.
OF_SECONDS, OF_FIRST_SECONDS, OF_MEMORY = 0.5, 1.05, 0.5

SYSTEMS = ("ours", "torchrun")


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.real_start
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_first_start(tmp_path: Path, ranks: int) -> None:
    """The first start of a run, on a node that has run before."""
    rounds = count("ROUNDS", 5)
    heading(f"a first start of {ranks} ranks of one worker, on a node that has run before, {rounds} rounds")
    for name in SYSTEMS:
        begin(name, tmp_path / f"{name}-before", ranks)
    took, memory = in_turns(tmp_path, ranks, rounds)
    verdict("seconds over torchrun's", median(took["ours"]) / median(took["torchrun"]), OF_SECONDS)
    if ranks > 1:  # one alone has nobody to share with
        verdict("memory over torchrun's", median(memory["ours"]) / median(memory["torchrun"]), OF_MEMORY)


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.real_start
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_first_start_without_bytecode(tmp_path: Path, ranks: int) -> None:
    """The first time on a node."""
    rounds = count("ROUNDS", 3)
    heading(f"a first start of {ranks} ranks of one worker, without any bytecode, {rounds} rounds")
    took, _ = in_turns(tmp_path, ranks, rounds, compiled=False)
    verdict("seconds over torchrun's", median(took["ours"]) / median(took["torchrun"]), OF_FIRST_SECONDS)


def in_turns(
    folder: Path, ranks: int, rounds: int, *, compiled: bool = True
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds until the first step, and bytes that a rank has alone, of each system. They are printed, too."""
    seconds: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    memory: dict[str, list[float]] = {name: [] for name in SYSTEMS}
    for number in range(rounds):
        for name in SYSTEMS if number % 2 == 0 else SYSTEMS[::-1]:
            second, private = begin(name, folder / f"{name}-{number}", ranks, compiled=compiled)
            seconds[name].append(second)
            memory[name].append(private)
    for name in SYSTEMS:
        print(f"  {name}: submitted to first step  {spread(seconds[name])}")
        print(f"  {name}: memory of a rank alone   {spread(memory[name], 'MB', 1e-6)}", flush=True)
    return seconds, memory


def begin(name: str, folder: Path, ranks: int, *, compiled: bool = True) -> tuple[float, float]:
    """Seconds until the last rank's first step, and the most memory that a rank has alone, in bytes."""
    folder.mkdir()
    ours = [Path(sys.executable).with_name("airflow-elastic"), "run", "--uri", folder / "run"]
    plain = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}")
    command = {
        "ours": [*ours, "--procs", str(ranks), "--", SCRIPT, folder],
        "torchrun": [*plain, SCRIPT, folder, "--plain"],
    }[name]
    environment = {**os.environ, **({} if compiled else {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")})}
    if not compiled:  # what one process has compiled, the next one reads
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.time()
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    told = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert len(told) == ranks
    if not compiled:
        assert any((folder / "bytecode").rglob("torch/__init__.*.pyc")), "torch had its bytecode"
    return max(one["at"] for one in told) - began, max(one["private"] for one in told)
