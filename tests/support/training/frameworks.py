"""A framework's trainer that is lost, and what its run has kept for the next one."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from typing import Any

import pytest


def put_joined_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the frameworks' `joined`, which a script of a test replaces, be theirs again after the test."""
    for package, module in (("lightning", "lightning"), ("transformers", "huggingface")):
        if importlib.util.find_spec(package) is not None:
            ours = importlib.import_module(f"airflow_elastic.frameworks.{module}")
            monkeypatch.setattr(ours, "joined", ours.joined)


class Kept:
    """What a run has kept with its last save, and gives to the trainer of another attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._state = monkeypatch, None

    def of(self, trainer: Any) -> Any:
        progress: list[Any] = []
        run, feed = trainer.run, trainer.run._feed

        def restore(model: Any, *optimizers: Any, **others: Any) -> None:
            progress.append(others["progress"])
            if self._state is not None:
                kept, steps, feed.position, order = self._state
                run._progress.goes_on((), steps)
                progress[0].load_state_dict(kept)
                feed.load_state_dict(order)

        def save(**_: Any) -> None:
            state = (progress[0].state_dict(), run.steps, feed.position, feed.state_dict())
            self._state = copy.deepcopy(state)

        self._monkeypatch.setattr(run, "restore", restore)
        self._monkeypatch.setattr(run, "save", save)
        return trainer

    def cut_off(self, trainer: Any, after: int) -> Any:
        """The same, and it is lost when it has saved after so many steps."""
        run, step = self.of(trainer).run, trainer.run.step

        def stepped(*told: Any, **metrics: Any) -> None:
            step(*told, **metrics)
            if run.steps == after:
                run.save()
                raise Lost

        self._monkeypatch.setattr(run, "step", stepped)
        return trainer


class Lost(Exception):
    """Of a training that has ended without a word."""
