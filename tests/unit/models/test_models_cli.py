"""`airflow-elastic promote`, `models` and `rollback`, as a user types them, with real weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control.models import TorchExporter
from airflow_elastic.spec.errors import ElasticError, InvalidInput
from airflow_elastic.spec.models import layout
from tests.support.cli import Shell
from tests.support.runs.watched import submitted, write_run
from tests.support.training.saving import network, save


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setenv("COLUMNS", "250")
    return Shell(tmp_path)


def test_promote_list_and_go_back(shell: Shell, tmp_path: Path) -> None:
    run, home = tmp_path / "run", tmp_path / "models"
    write_run(run, submitted())
    nets = {step: network(step) for step in (5, 9)}
    for step, net in nets.items():
        save(run, step, net)

    assert "has no promotion" in shell("models", home).stderr
    first = shell("promote", run, home, "--step", 5, "--rule", "loss < promoted", "--why", "the first")
    assert first.stdout == f"promotion 1 of {home}: checkpoint 5 of {run}, loss 0.5\n"
    worse = shell("promote", run, home, "--rule", "loss < promoted")
    assert worse.returncode == 1
    assert "not promoted: checkpoint 9" in worse.stdout
    assert "loss 0.5 is not < 0.5 (the promoted model has 0.5); promotion 1 stays" in worse.stdout
    better = ("--metric", "loss=0.25", "--format", "pt")
    assert shell("promote", run, home, "--rule", "loss < promoted * 0.9", *better).returncode == 0

    told = json.loads(shell("models", home, "--json").stdout)["promotions"]
    assert [(one["number"], one["step"], one["metrics"]) for one in told] == [
        (1, 5, {"loss": 0.5}),
        (2, 9, {"loss": 0.25}),
    ]
    assert told[1]["compared"] == {"number": 1, "metrics": {"loss": 0.5}}
    loaded = (
        load_file(home / told[0]["weights"]["key"]),
        torch.load(home / told[1]["weights"]["key"], weights_only=True),
    )
    for net, weights in zip(nets.values(), loaded, strict=True):
        assert weights.keys() == net.model.state_dict().keys()
        assert all(torch.equal(weights[name], one) for name, one in net.model.state_dict().items())

    back = shell("rollback", home, "--why", "it was trained on test data")
    assert "promotion 3 of" in back.stdout
    assert "the model of promotion 1 again, checkpoint 5" in back.stdout
    table = shell("models", home).stdout
    assert "back to the model of 1; it was trained on test data" in table
    assert table.endswith(f"promotion 3 counts: {home}/{told[0]['weights']['key']}\n")
    assert json.loads((home / layout.CURRENT).read_bytes())["number"] == 3


def test_bad_input(shell: Shell, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, submitted())
    save(run, 5, network(3))
    for words, said in (
        (("--rule", "loss better"), "rule: given 'loss better'; allowed: a metric, one of"),
        (("--metric", "loss"), "given 'loss'; allowed: a name, = and a number"),
        (("--step", 7), "step 7 has no committed checkpoint; there are: 5"),
    ):
        done = shell("promote", run, tmp_path / "models", *words)
        assert done.returncode == 2
        assert said in done.stderr
    assert not (tmp_path / "models").exists()


def test_an_interpreter_that_cannot_export(tmp_path: Path) -> None:
    run = open_store(str(tmp_path / "run"))
    with pytest.raises(InvalidInput, match="which cannot be started"):
        TorchExporter(str(tmp_path / "no python"))(run, 5, tmp_path / "model.pt")
    bare = TorchExporter(sys.executable, {"PYTHONPATH": str(tmp_path)})
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    with pytest.raises(InvalidInput, match=r"has no torch, which exports the weights: pip install .*runtime"):
        bare(run, 5, tmp_path / "model.pt")
    with pytest.raises(ElasticError, match="holds no run, and no checkpoint"):
        TorchExporter()(run, 5, tmp_path / "model.pt")
