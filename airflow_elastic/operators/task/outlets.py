"""Metadata of asset events: what a task says with each of its outlets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset

if TYPE_CHECKING:
    from airflow.sdk import Context


def tell_outlets(context: Context, extra: Mapping[str, Any]) -> None:
    """Add metadata to the events of all assets among the task's outlets.

    Args:
        context: of the task.
        extra: plain JSON. What the task's author has set already stays.
    """
    outlets = [one for one in getattr(context.get("task"), "outlets", None) or () if isinstance(one, Asset)]
    for outlet in outlets:
        told = context["outlet_events"][outlet].extra
        told.update({name: value for name, value in extra.items() if name not in told})
