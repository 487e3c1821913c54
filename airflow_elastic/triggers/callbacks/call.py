"""Call one callback."""

from __future__ import annotations

import asyncio
import inspect
import pkgutil
from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseNotifier


async def call(path: str, kwargs: Mapping[str, Any], context: Mapping[str, Any]) -> None:
    """Import a callback and call it: a coroutine here, everything else in a thread.

    A notifier is made with `kwargs`; its templated fields are rendered with the context. A function gets `kwargs`, and
    `context` if it has a parameter of that name or takes any. Raises what the callback raises, and ImportError.

    Args:
        path: import path of a function, or of a notifier class.
        kwargs: its keyword arguments.
        context: what has happened, and to which task: see ElasticTrainOperator.
    """
    target = await asyncio.to_thread(pkgutil.resolve_name, path)
    if inspect.isclass(target) and issubclass(target, BaseNotifier):
        await _notify(target(**kwargs), dict(context))
        return
    given = {**kwargs, "context": dict(context)} if _takes_context(target) else dict(kwargs)
    if inspect.iscoroutinefunction(target):
        await target(**given)
        return
    result = await asyncio.to_thread(target, **given)
    if inspect.isawaitable(result):
        await result


async def _notify(notifier: BaseNotifier, context: dict[str, Any]) -> None:
    if type(notifier).async_notify is not BaseNotifier.async_notify:
        notifier.context = context  # type: ignore[assignment]
        await notifier
    else:
        await asyncio.to_thread(notifier, context)


def _takes_context(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # of a builtin
        return False
    return "context" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
