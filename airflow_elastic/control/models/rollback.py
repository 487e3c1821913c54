"""Promote an earlier model again."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_elastic.adapters.records import promotions
from airflow_elastic.control.models.publish import problem
from airflow_elastic.spec.errors import InvalidInput, RunMissing, StoreError
from airflow_elastic.spec.models.promotion import ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_elastic.adapters.storage.store import Store
    from airflow_elastic.spec.models import Promotion


def rollback(
    model: Store, *, by: str, why: str | None, to: int | None = None, task: str | None = None
) -> Promotion:
    """Promote the model of an earlier promotion again, by a new record. Its weights are read back first.

    Args:
        model: the model URI.
        by: who does so, in words.
        why: in words.
        to: number of the promotion. Default: the newest one that promoted another model than the current one, and that
            no rollback has left behind.
        task: the task instance, if one does so. Another try of it finds the first one's record.

    Raises:
        RunMissing: nothing is promoted.
        InvalidInput: there is no such promotion, or it is the current one.
        StoreError: its weights are missing or have changed, or the storage fails.
    """
    while True:
        known = promotions.history(model)
        if not known:
            raise RunMissing(f"{model.uri} has no promotion: check the URI")
        now = known[-1]
        if task is not None and (now.kind, now.task) == (ROLLBACK, task):
            promotions.mend(model)
            return now
        target = _target(model, known, to)
        if (why_not := problem(model, target.weights)) is not None:
            raise StoreError(f"{why_not}; choose another promotion")
        record = replace(
            target,
            number=now.number + 1,
            kind=ROLLBACK,
            by=by,
            at=time.time(),
            id=uuid.uuid4().hex,
            rule=None,
            compared=None,
            why=why,
            task=task,
            replaces=now.number,
            restores=target.number,
        )
        if promotions.create(model, record):
            promotions.mend(model)
            return record


def _target(model: Store, known: list[Promotion], to: int | None) -> Promotion:
    now = known[-1]
    if to is not None:
        found = next((one for one in known if one.number == to), None)
        if found is None:
            there = ", ".join(str(one.number) for one in known)
            raise InvalidInput(f"{model.uri} has no promotion {to}; there are: {there}")
        if found.weights == now.weights:
            raise InvalidInput(f"promotion {to} of {model.uri} has the model that is promoted now")
        return found
    by_number = {one.number: one for one in known}
    at: Promotion | None = _original(now, by_number)
    # A model that was promoted after a rollback replaces what that one has restored.
    while at is not None and at.weights == now.weights:
        before = by_number.get(at.replaces or 0)
        at = _original(before, by_number) if before is not None else None
    if at is None:
        raise InvalidInput(f"{model.uri} has no earlier model than that of promotion {now.number}")
    return at


def _original(one: Promotion, by_number: Mapping[int, Promotion]) -> Promotion:
    """The promotion that a rollback has restored; any other promotion itself."""
    while one.restores is not None and one.restores < one.number:
        one = by_number[one.restores]
    return one
