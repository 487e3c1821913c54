"""Operators whose runs lie in folders, and whose workers are in memory."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from airflow_elastic.adapters import plugins
from airflow_elastic.hooks.elastic import Settings
from airflow_elastic.operators import ElasticTrainOperator
from airflow_elastic.triggers import ElasticRunTrigger
from tests.support.runs.surface import FakeHook, FakeTask


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of these tests is installed."""
    real = plugins._find

    def find(group: str, name: str) -> EntryPoint | None:
        return EntryPoint(name, "fake:Fake", group) if name == "fake" else real(group, name)

    monkeypatch.setattr(plugins, "_find", find)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHook:
    """Also what operators and triggers make of their connection ids."""
    made = FakeHook()
    made.__dict__["settings"] = Settings(run_root=str(tmp_path), engine="fake")
    monkeypatch.setattr(ElasticTrainOperator, "_hook", lambda self: made)
    monkeypatch.setattr(ElasticRunTrigger, "_hook", lambda self: made)
    monkeypatch.setattr(ElasticRunTrigger, "task_instance", FakeTask())
    return made
