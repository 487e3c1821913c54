"""Real trainings whose shape changes on the way, killed after it: they end as they would have, to the bit."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.driving import SCRIPTS, driving, training
from tests.support.optimizers import equal

LIGHTNING = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="lightning is not installed"
)


async def ended(script: str, folder: Path, kind: str, *die: int) -> dict[str, torch.Tensor]:
    """The weights that a training ends with."""
    out = folder / f"{kind}-{len(die)}.pt"
    command = (str(SCRIPTS / script), kind, str(out), *(f"--die={step}" for step in die))
    spec = training(command=command, checkpoint=CheckpointPolicy(every_steps=2))
    async with driving(folder / f"{kind}-{len(die)}", spec) as driven:
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1 + len(die)), state.reason
    weights: dict[str, torch.Tensor] = torch.load(out)
    return weights


CASES = [
    pytest.param(
        "finetuning", (14,), marks=pytest.mark.slow
    ),  # tests/unit/test_changing.py is the short form
    *(
        pytest.param(kind, (14, 21), marks=pytest.mark.slow, id=f"{kind}-more")
        for kind in ("finetuning", "pruning", "global", "averaging", "own")
    ),
]


@LIGHTNING
@pytest.mark.parametrize(("kind", "die"), CASES)
async def test_lightnings_callbacks_as_they_are(kind: str, die: tuple[int, ...], tmp_path: Path) -> None:
    """On two ranks, within an epoch (of five steps), and with the first step of one."""
    script = "lightning_changing.py"
    straight = await ended(script, tmp_path, kind)
    assert equal(await ended(script, tmp_path, kind, *die), straight)
