"""Measures a trained model on data that it has not seen."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any


def evaluate(run_uri: str, data: Path, folder: Path) -> dict[str, Any]:
    """Load the run's newest checkpoint, verified against its manifest, and measure it on the held-out data.

    Returns what may be promoted, in plain JSON: the accuracy, where the model comes from, and its weights, written to a
    file below `folder`, so that what is promoted is the very thing that was measured.
    """
    import numpy as np
    import torch

    import airflow_elastic.runtime as elastic
    from digits.network import network

    model = network()
    checkpoint = elastic.load_model(run_uri, model)
    with np.load(data) as stored:
        images, labels = (
            torch.from_numpy(stored["held_out_images"]),
            torch.from_numpy(stored["held_out_labels"]),
        )
    model.eval()
    with torch.inference_mode():
        right = int((model(images).argmax(dim=1) == labels).sum())

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        torch.save(model.state_dict(), file)
    sha256 = hashlib.sha256(Path(file.name).read_bytes()).hexdigest()
    weights = folder / f"{sha256}.pt"
    os.replace(file.name, weights)
    return {
        "accuracy": right / len(labels),
        "held_out": len(labels),
        "weights": str(weights),
        "sha256": sha256,
        "run_uri": run_uri,
        "checkpoint": {
            "step": checkpoint.step,
            "sha256": {file.key: file.checksums["sha256"] for file in checkpoint.files},
        },
    }
