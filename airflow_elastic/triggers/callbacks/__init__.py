"""Callbacks of a training task: `on_restart`, `on_scale`, `on_unhealthy`, `on_checkpoint`.

They run where the run is driven: in the triggerer, as Airflow's own `AsyncCallback`s do.

- `declare`: from the operator's arguments to plain JSON. `call`: one call. `observer`: when to call, and how often.
"""

from __future__ import annotations

from airflow_elastic.triggers.callbacks.declare import CALLBACKS, names_of, plain_callbacks
from airflow_elastic.triggers.callbacks.observer import CallbackObserver

__all__ = ["CALLBACKS", "CallbackObserver", "names_of", "plain_callbacks"]
