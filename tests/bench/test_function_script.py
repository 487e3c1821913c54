"""A function that is shipped as the script, beside the same script as a file: starts and steps."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.spec.run import RunSpec, Workers
from tests.bench.scripts import in_function
from tests.bench.support.figures import count, heading, median, spread, verdict
from tests.support.driving import driving, training

FILE = Path(in_function.__file__)


def shipped(spec: RunSpec, arguments: str) -> RunSpec:
    """The run of the function, as the decorator ships it."""
    from airflow_elastic.decorators.script.extract import script_of

    script = script_of(in_function.train)
    assert script is not None
    return replace(spec, command=(script.file, arguments), script=script.text)


async def figures(folder: Path, steps: int, *, ship: bool) -> tuple[float, float]:
    """Seconds from the submission to the end of the first step, and those of a later step."""
    out = folder / "out"
    arguments = json.dumps({"steps": steps, "out": str(out)})
    spec = training(command=(str(FILE), arguments), workers=Workers(1))
    began = time.time()
    async with driving(folder / "run", shipped(spec, arguments) if ship else spec) as driven:
        state = await driven.end()
    assert state.outcome == "succeeded", state.reason
    found = json.loads(out.read_text())
    return found["first"] - began, found["step"]


@pytest.mark.bench
@pytest.mark.airflow
@pytest.mark.timeout(3600)
async def test_a_shipped_function_is_as_fast_as_a_file(tmp_path: Path) -> None:
    steps, rounds = count("STEPS", 3000), count("ROUNDS", 7)
    heading(f"{steps} steps of a shipped function and of the same file, {rounds} times in turns")
    seen: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(rounds):
        for ship in (True, False) if number % 2 else (False, True):
            folder = tmp_path / f"{number}-{ship}"
            folder.mkdir()
            seen[ship].append(await figures(folder, steps, ship=ship))
    for index, what in enumerate(("submission to first step", "a step")):
        ours, file = ([one[index] for one in seen[ship]] for ship in (True, False))
        print(f"  {what}, shipped  {spread(ours, 'ms', 1000)}")
        print(f"  {what}, a file   {spread(file, 'ms', 1000)}")
        verdict(f"{what}, over that of the file", median(ours) / median(file), 1.05)


@pytest.mark.airflow
async def test_both_forms_run(tmp_path: Path) -> None:
    for ship in (True, False):
        folder = tmp_path / str(ship)
        folder.mkdir()
        first, step = await figures(folder, 60, ship=ship)
        assert first > 0
        assert step > 0
