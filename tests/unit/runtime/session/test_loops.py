"""Each loop that the documentation shows, killed in later epochs: it ends with the bits of one that nobody disturbs.

This is the short form, with one rank in this process; tests/e2e/training/test_loops.py has real ones.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import airflow_elastic.runtime as elastic
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from tests.support.runs.attempts import Killed, to_the_end
from tests.support.training.loops import STEPS, dressed, framework, shown, supply

#: In the second epoch, with its last step, in the third; and, where a second training follows, in the same of that.
KILLS = (STEPS + 1, 2 * STEPS, 2 * STEPS + 2, 3 * STEPS + 4, 3 * STEPS + 6)

LOOPS = [one for one in shown() if framework(one) in (None, "accelerate")]


def needs(text: str) -> None:
    for word, package in (("StatefulDataLoader", "torchdata"), ("accelerate", "accelerate")):
        if word in text and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def end(text: str, run: Path, kills: tuple[int, ...], patch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """The state that the script ends with, and what it has printed, over all attempts."""
    told: list[str] = []
    left = set(kills)

    def script(session: Session) -> str:
        step = session.step

        def stepped(*words: Any, **metrics: Any) -> None:
            step(*words, **metrics)
            if session.steps in left:
                left.remove(session.steps)
                raise Killed

        names: dict[str, Any] = {"__name__": "__main__", "print": lambda *words: told.append(str(words))}
        with patch.context() as now:
            now.setattr(session, "step", stepped)
            now.setattr(elastic, "init", lambda: session, raising=False)
            now.setattr("airflow_elastic.frameworks.accelerate.init", lambda: session, raising=False)
            exec(compile(text, "<the documentation>", "exec"), names)
        kinds = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
        ends = {name: one.state_dict() for name, one in names.items() if isinstance(one, kinds)}
        return repr((session.steps, ends, torch.rand(2)))

    result, attempts = to_the_end(run, CheckpointPolicy(every_steps=2), script)
    assert attempts == 1 + len(set(kills)) - len(left)
    assert attempts == 1 or attempts > 3
    return result, told


@pytest.mark.parametrize("block", LOOPS, ids=str)
def test_killed_in_later_epochs_it_ends_as_undisturbed(
    block: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(block.text)
    text = dressed(block, supply(tmp_path / "shards"), in_process=True)
    expected = end(text, tmp_path / "undisturbed", (), monkeypatch)
    assert end(text, tmp_path / "killed", KILLS, monkeypatch) == expected
    epochs = [line for line in expected[1] if "epoch" in line]
    assert len(epochs) in (0, 3, 5)
    assert len({*epochs}) == len(epochs)


def test_there_are_loops_to_try() -> None:
    """Somebody who writes them otherwise has to tell `tests.support.training.loops`."""
    pages = {one.page.name for one in shown()}
    assert pages >= {
        "README.md",
        "runtime.md",
        "load-data.md",
        "stream-data.md",
        "change-the-model.md",
        "resume-lightning.md",
    }
    assert len(LOOPS) >= 10
