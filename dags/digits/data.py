"""The data: 1797 handwritten digits of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

VALIDATION = 180
HELD_OUT = 180


def write(home: Store) -> str:
    """Write the data set, and return its URI. It has three parts: for training, validation, and for evaluation.

    The bytes are the same each time, and the split never changes: the accuracies of any two models can be compared.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype("float32")  # pixels are 0 to 16; one channel
    labels = digits.target[order].astype("int64")
    file = io.BytesIO()
    np.savez(
        file,
        images=images[HELD_OUT + VALIDATION :],
        labels=labels[HELD_OUT + VALIDATION :],
        validation_images=images[HELD_OUT : HELD_OUT + VALIDATION],
        validation_labels=labels[HELD_OUT : HELD_OUT + VALIDATION],
        held_out_images=images[:HELD_OUT],
        held_out_labels=labels[:HELD_OUT],
    )
    home.put("digits.npz", file.getvalue())  # a task that is reading it goes on with the old one
    return f"{home.uri}/digits.npz"
