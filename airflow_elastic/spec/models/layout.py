"""The layout of a model URI: the key of every object. Only this module knows it.

```text
promotions/00000002.json              the record of promotion 2, created exclusively; the highest number is current
weights/<sha256>/model.safetensors    the weights of a model, or model.pt; never changed
evaluations/00000002/<id>.json        metrics of the model of promotion 2, as measured later
current.json                          a copy of the newest record, for programs that do not list objects
```
"""

from __future__ import annotations

PROMOTIONS = "promotions/"
WEIGHTS = "weights/"
EVALUATIONS = "evaluations/"
CURRENT = "current.json"


def promotion(number: int) -> str:
    """Key of the record of a promotion, from 1."""
    return f"{PROMOTIONS}{number:08d}.json"


def weights(sha256: str, suffix: str) -> str:
    """Key of a file of weights. Its name is its content: other weights never take its place.

    Args:
        sha256: of the file, hex digits.
        suffix: of the format, with its dot.
    """
    return f"{WEIGHTS}{sha256}/model{suffix}"


def evaluations(number: int) -> str:
    """Folder of what evaluations have measured of the model of a promotion."""
    return f"{EVALUATIONS}{number:08d}/"
