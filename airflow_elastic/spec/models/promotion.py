"""The record of a promotion: which weights are the model from now on, where they are from, and who decided that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Version of a record's form. Readers refuse newer ones.
PROMOTION_VERSION = 1

#: The kinds of a record: another model is promoted, or an earlier one is promoted again.
PROMOTE, ROLLBACK = "promote", "rollback"


@dataclass(frozen=True, slots=True)
class Weights:
    """A file of weights.

    Attributes:
        key: below the model URI.
        format: `safetensors` or `pt`.
        size: bytes.
        sha256: hex digits.
    """

    key: str
    format: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Compared:
    """The promoted model that a candidate was compared with: number of its promotion, and its metrics then."""

    number: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a model comes from.

    Attributes:
        origin: what its run started from, as the run's journal has it; None if it started from scratch.
        code: the code of its run: `source_root`, and name and version of its DAG bundle, as far as they are known.
        data: what the author has said about the data, plain JSON.
    """

    origin: Mapping[str, Any] | None = None
    code: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Promotion:
    """One record. It is never changed; the one with the highest number says which model is promoted.

    Attributes:
        number: from 1.
        kind: `promote`, or `rollback` to the model of an earlier promotion.
        weights: the file of the model.
        run: URI of the run that trained it.
        step: of its checkpoint.
        metrics: by which it was judged.
        by: who promoted it, in words.
        at: when, epoch seconds.
        id: chosen at random. No two promoters write equal records.
        rule: that it fulfilled; None without one.
        compared: the model that was promoted before, if there was one.
        why: in words, as somebody gave it.
        task: the task instance that promoted it, if it was one; its retries find their own record by that.
        replaces: number of the promotion before; None for the first one.
        restores: of a rollback: number of the promotion whose model is promoted again.
        lineage: where the model comes from.
        version: form of this document.
    """

    number: int
    kind: str
    weights: Weights
    run: str
    step: int
    metrics: Mapping[str, float]
    by: str
    at: float
    id: str
    rule: str | None = None
    compared: Compared | None = None
    why: str | None = None
    task: str | None = None
    replaces: int | None = None
    restores: int | None = None
    lineage: Lineage = field(default_factory=Lineage)
    version: int = PROMOTION_VERSION
