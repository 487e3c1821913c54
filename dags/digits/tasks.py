"""The tasks that both DAGs have in common. torch is imported while they run, never while a DAG is parsed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, Variable, task
from airflow.sdk.exceptions import AirflowSkipException

#: The promoted model. Its events carry the card of the model; a DAG with `schedule=[MODEL]` runs after each promotion.
MODEL = Asset("digits_model")


def home() -> Path:
    """Where data and models lie: the Airflow variable `digits_home`, else AIRFLOW_HOME/digits."""
    airflow_home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    return Path(Variable.get("digits_home", default=None) or f"{airflow_home}/digits").expanduser()


@task
def prepare() -> str:
    """Write the data set, and return its path."""
    from digits import data

    return str(data.write(home() / "digits.npz"))


@task
def evaluate(run_uri: str, data: str) -> dict[str, Any]:
    """Measure the newest checkpoint of a run on held-out data."""
    from digits.evaluation import evaluate

    candidate = evaluate(run_uri, Path(data), home() / "candidates")
    print(
        f"accuracy {candidate['accuracy']:.4f} on {candidate['held_out']} digits that training has not seen"
    )
    return candidate


@task(outlets=[MODEL])
def promote(candidate: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Publish the model, if it beats the promoted one; otherwise this task is skipped, and says why."""
    from digits import promotion

    try:
        card = promotion.promote(home() / "models", candidate)
    except promotion.NotBetter as reason:
        raise AirflowSkipException(str(reason)) from None
    context["outlet_events"][MODEL].extra = card
    print(f"model {card['model']} is promoted: {card['weights']}")
    return card


@task(inlets=[MODEL])
def promoted() -> dict[str, Any]:
    """The card of the promoted model; skips what follows as long as there is none."""
    from digits import promotion

    card = promotion.current(home() / "models")
    if card is None:
        raise AirflowSkipException("no model is promoted yet: run the DAG digits_quickstart first")
    print(f"going on from model {card['model']}, accuracy {card['accuracy']:.4f}")
    return card
