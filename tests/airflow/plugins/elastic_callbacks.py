"""Callbacks of the DAGs beside: each adds a line to AIRFLOW_HOME/callbacks.jsonl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier

WHERE = Path(os.environ.get("AIRFLOW_HOME", ".")) / "callbacks.jsonl"


def write(**what: Any) -> None:
    with WHERE.open("a") as file:
        file.write(json.dumps(what, default=str) + "\n")


def plain(context: dict[str, Any]) -> None:
    write(by="plain", run=context["run_id"], **context["event"])


async def slow(context: dict[str, Any], who: str) -> None:
    write(by=who, run=context["run_id"], **context["event"])


async def late(**kwargs: Any) -> None:
    """Of Airflow's deadline alert."""
    write(by="deadline", kwargs=sorted(kwargs))


class Letter(BaseNotifier):
    """A notifier as providers have them: templated, for any thread."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        write(by="letter", text=self.text, run=context["run_id"])
