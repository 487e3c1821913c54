"""The data: 1797 handwritten digits of 8x8 pixels, which come with scikit-learn."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

HELD_OUT = 360


def write(path: Path) -> Path:
    """Write the data set, split into what is trained on and what is held out; the same bytes each time.

    The split never changes, so the accuracies of any two models can be compared.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.images[order, None] / 16).astype("float32")  # pixels are 0 to 16; one channel
    labels = digits.target[order].astype("int64")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        np.savez(
            file,
            images=images[HELD_OUT:],
            labels=labels[HELD_OUT:],
            held_out_images=images[:HELD_OUT],
            held_out_labels=labels[:HELD_OUT],
        )
    os.replace(file.name, path)  # whoever is reading it goes on with the old one
    return path
