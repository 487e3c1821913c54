"""The data: 1797 handwritten digits of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

VALIDATION = 180
HELD_OUT = 180


def write(home: Store, month: int | None = None) -> str:
    """Write the data set, and return its URI. It has three parts: for training, validation, and for evaluation.

    The bytes are the same each time, and the split never changes: the accuracies of any two models can be compared.

    Args:
        home: the place.
        month: only the twelfth for training that comes in this month, 1 to 12. The other two parts are the same.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype("float32")  # pixels are 0 to 16; one channel
    labels = digits.target[order].astype("int64")
    rest = HELD_OUT + VALIDATION
    train = slice(rest, None) if month is None else slice(rest + month - 1, None, 12)
    file = io.BytesIO()
    np.savez(
        file,
        images=images[train],
        labels=labels[train],
        validation_images=images[HELD_OUT : HELD_OUT + VALIDATION],
        validation_labels=labels[HELD_OUT : HELD_OUT + VALIDATION],
        held_out_images=images[:HELD_OUT],
        held_out_labels=labels[:HELD_OUT],
    )
    name = "digits.npz" if month is None else f"months/{month:02}.npz"
    home.put(name, file.getvalue())  # a task that is reading it goes on with the old one
    return f"{home.uri}/{name}"
