"""Measures a trained model on data that it has not seen."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


def evaluate(run: Store, data: bytes, home: Store) -> dict[str, Any]:
    """Load the run's newest checkpoint, verified against its manifest, and measure it on the held-out data.

    Returns plain JSON: the accuracy, where the model comes from, and the file of its weights in `home`. Promotion uses
    this file, so the promoted weights are those that were measured.
    """
    import numpy as np
    import torch

    import airflow_elastic.runtime as elastic
    from digits.network import network

    model = network()
    checkpoint = elastic.load_model(run, model)
    with np.load(io.BytesIO(data)) as stored:
        images, labels = (
            torch.from_numpy(stored["held_out_images"]),
            torch.from_numpy(stored["held_out_labels"]),
        )
    model.eval()
    with torch.inference_mode():
        right = int((model(images).argmax(dim=1) == labels).sum())

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    weights = file.getvalue()
    sha256 = hashlib.sha256(weights).hexdigest()
    home.put(f"weights/{sha256}.pt", weights)
    return {
        "accuracy": right / len(labels),
        "held_out": len(labels),
        "weights": f"{home.uri}/weights/{sha256}.pt",
        "sha256": sha256,
        "run_uri": run.uri,
        "checkpoint": {
            "step": checkpoint.step,
            "checksums": {file.key: dict(file.checksums) for file in checkpoint.files},
        },
    }
