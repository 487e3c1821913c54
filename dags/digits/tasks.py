"""The tasks that these DAGs have in common. torch is imported while they run, never while a DAG is parsed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, Variable, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_elastic.hooks import ElasticHook

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store

#: The promoted model. Its events carry the card of the model; a DAG with `schedule=[MODEL]` runs after each promotion.
MODEL = Asset("digits_model")


def opened(uri: str) -> Store:
    """A folder or an S3 prefix, with the credentials that the elastic connection names."""
    return ElasticHook().open_store(uri)


def home() -> Store:
    """The store of data and models: the Airflow variable `digits_home`, else AIRFLOW_HOME/digits."""
    airflow_home = os.environ.get("AIRFLOW_HOME") or "~/airflow"
    return opened(Variable.get("digits_home", default=None) or f"{airflow_home}/digits")


@task
def prepare() -> str:
    """Write the data set, and return its URI."""
    from digits import data

    return data.write(home())


@task
def evaluate(run_uri: str, data: str) -> dict[str, Any]:
    """Measure the newest checkpoint of a run on held-out data."""
    from digits.evaluation import evaluate
    from digits.files import read

    candidate = evaluate(opened(run_uri), read(data, opened), home())
    print(
        f"accuracy {candidate['accuracy']:.4f} on {candidate['held_out']} digits that training has not seen"
    )
    return candidate


@task(outlets=[MODEL])
def promote(candidate: dict[str, Any], **context: Any) -> dict[str, Any]:
    """Publish the model, if it beats the promoted one; otherwise this task is skipped, and says why."""
    from airflow_elastic.control import Run
    from digits import promotion

    try:
        card = promotion.promote(home(), candidate)
    except promotion.NotBetter as reason:
        raise AirflowSkipException(str(reason)) from None
    run = Run(opened(card["run_uri"]))
    run.pin(card["checkpoint"]["step"], by=f"model {card['model']}")  # what it was made of is never removed
    context["outlet_events"][MODEL].extra = card
    print(f"model {card['model']} is promoted: {card['weights']}")
    return card


@task(inlets=[MODEL])
def promoted() -> dict[str, Any]:
    """The card of the promoted model; skips what follows as long as there is none."""
    from digits import promotion

    card = promotion.current(home())
    if card is None:
        raise AirflowSkipException("no model is promoted yet: run the DAG digits_quickstart first")
    print(f"going on from model {card['model']}, accuracy {card['accuracy']:.4f}")
    return card
