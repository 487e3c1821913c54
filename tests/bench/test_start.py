"""A first start, and the memory of ranks, of a worker with four ranks: ours and torchrun's, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.support.figures import count, heading, median, spread, verdict

SCRIPT = Path(__file__).parent / "scripts/begin.py"
RANKS = 4

#: The goals, over torchrun's: seconds until the first step, and memory that a rank shares with no other.
OF_SECONDS, OF_MEMORY = 1.05, 0.5


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.real_start
def test_a_first_start(tmp_path: Path) -> None:
    rounds = count("ROUNDS", 5)
    heading(f"a first start of {RANKS} ranks of one worker, {rounds} rounds")
    seconds: dict[str, list[float]] = {"ours": [], "torchrun": []}
    memory: dict[str, list[float]] = {"ours": [], "torchrun": []}
    for number in range(rounds):
        for name, took in seconds.items():
            second, private = begin(name, tmp_path / f"{name}-{number}")
            took.append(second)
            memory[name].append(private)
    for name, took in seconds.items():
        print(f"  {name}: submitted to first step  {spread(took)}")
        print(f"  {name}: memory of a rank alone   {spread(memory[name], 'MB', 1e-6)}")
    verdict("seconds over torchrun's", median(seconds["ours"]) / median(seconds["torchrun"]), OF_SECONDS)
    verdict("memory over torchrun's", median(memory["ours"]) / median(memory["torchrun"]), OF_MEMORY)


def begin(name: str, folder: Path) -> tuple[float, float]:
    """Seconds until the last rank's first step, and the most memory that a rank has alone, in bytes."""
    folder.mkdir()
    ours = [Path(sys.executable).with_name("airflow-elastic"), "run", "--uri", folder / "run"]
    plain = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    command = {
        "ours": [*ours, "--procs", str(RANKS), "--", SCRIPT, folder],
        "torchrun": [*plain, SCRIPT, folder, "--plain"],
    }[name]
    began = time.time()
    subprocess.run(command, cwd=folder, capture_output=True, check=True)
    told = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    assert len(told) == RANKS
    return max(one["at"] for one in told) - began, max(one["private"] for one in told)
