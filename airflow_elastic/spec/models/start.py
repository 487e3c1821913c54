"""Where a new run begins: with the weights of a checkpoint, of a promoted model, or of a file (a warm start)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow_elastic.spec.checkpoint import best_rule
from airflow_elastic.spec.validation import Checks, non_negative_int

#: Suffixes of files with weights.
WEIGHT_FILES = (".pt", ".pth", ".bin", ".safetensors", ".index.json")

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*://")


def is_absolute(source: str) -> bool:
    """Whether it means the same place in every folder: an absolute path, or a URI."""
    return _ABSOLUTE.match(source) is not None


@dataclass(frozen=True, slots=True)
class StartFrom:
    """What a new run begins with. Its own checkpoints replace this after a restart.

    Attributes:
        source: the URI of a run, the URI of a model (its promoted model), or a file of weights: `.pt`, `.pth`, `.bin`,
            `.safetensors` or `.index.json`. A path is absolute.
        step: of a run: the checkpoint of this step. Default: the newest one.
        best: of a run: the checkpoint with the best value of a metric, e.g. `min val_loss`.
        optimizer: also take over the state of the optimizers. Their settings, such as the learning rate, stay those of
            the script. Not with a file. Default: only the weights.
        optional: begin from scratch if there is no checkpoint, promoted model or file yet. Default: refuse.
    """

    source: str
    step: int | None = None
    best: str | None = None
    optimizer: bool = False
    optional: bool = False

    def __post_init__(self) -> None:
        with Checks() as check:
            whole = isinstance(self.source, str) and is_absolute(self.source)
            what = "an absolute path or a URI, e.g. s3://bucket/runs/mnist: of a run, a model, or a file of weights"
            check.that(whole, "source", self.source, what)
            if self.step is not None:
                check("step", self.step, non_negative_int)
            if self.best is not None:
                check("best", self.best, best_rule)
            if check.passed:
                one = "none with `step`: one of them chooses the checkpoint"
                check.that(self.step is None or self.best is None, "best", self.best, one, across=True)
                for name in ("step", "best", "optimizer"):
                    given = getattr(self, name)
                    allowed = "only for a run or a model: a file holds the weights of one model, and no more"
                    check.that(
                        not (self.is_file and given not in (None, False)), name, given, allowed, across=True
                    )

    @property
    def is_file(self) -> bool:
        """Whether the source is a file of weights."""
        return self.source.endswith(WEIGHT_FILES)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run has begun with. It is found once, before the first attempt, and never changes.

    Attributes:
        source: as the specification gives it.
        run: URI of the run that has trained the weights, where it is known.
        step: of that run's checkpoint.
        file: the file of weights that ranks load; None: they load the checkpoint.
        promotion: number of the promotion, of a promoted model.
        sha256: of the file, where it is known.
        optimizer: whether ranks also load the state of the optimizers.
    """

    source: str
    run: str | None = None
    step: int | None = None
    file: str | None = None
    promotion: int | None = None
    sha256: str | None = None
    optimizer: bool = False

    @property
    def words(self) -> str:
        """What it is, in words: `checkpoint 340 of /mnt/runs/mnist`."""
        if self.promotion is not None:
            return f"promotion {self.promotion} of {self.source}"
        if self.file is not None:
            return f"the weights in {self.file}"
        return f"checkpoint {self.step} of {self.run}"
