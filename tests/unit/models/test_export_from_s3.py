"""Promote from a run on S3 to a model URI on S3, with real weights, as an operator with its own credentials does."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from airflow_elastic.control.models import Request, TorchExporter, promote
from tests.support.s3 import S3Server
from tests.support.training.saving import Position, SavingWorker, network


def test_the_exporter_gets_the_credentials(server: S3Server, tmp_path: Path) -> None:
    run, model, net = server.store(), server.store(), network(3, 5)
    worker = SavingWorker(run)
    worker.save(net, 7, Position(1, 10, 70), reason="script", metrics={"loss": 0.5})
    record = promote(model, run, Request("anna"), TorchExporter(environment=server.env))
    model.download(record.weights.key, tmp_path / "model.safetensors")
    loaded = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(loaded[name], one) for name, one in net.model.state_dict().items())
    assert (record.step, record.metrics) == (7, {"loss": 0.5})
