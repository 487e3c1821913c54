"""Several observers are told everything that one is told."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from airflow_elastic.control.observer import Observer, Observers

CALLS = [name for name in vars(Observer) if name.startswith("on_")]


@pytest.mark.parametrize("name", CALLS)
async def test_each_observer_is_told(name: str) -> None:
    told: list[tuple[int, tuple[Any, ...]]] = []
    several = []
    for number in (1, 2):
        observer = Observer()
        setattr(
            observer,
            name,
            _noted(told, number, is_async=inspect.iscoroutinefunction(getattr(Observer, name))),
        )
        several.append(observer)
    arguments = tuple(object() for _ in list(inspect.signature(getattr(Observer, name)).parameters)[1:])
    answer = getattr(Observers(*several), name)(*arguments)
    if inspect.isawaitable(answer):
        await answer
    assert told == [(1, arguments), (2, arguments)]


def _noted(told: list[tuple[int, tuple[Any, ...]]], number: int, *, is_async: bool) -> Any:
    def note(*arguments: Any) -> None:
        told.append((number, arguments))

    async def note_later(*arguments: Any) -> None:
        note(*arguments)

    return note_later if is_async else note
