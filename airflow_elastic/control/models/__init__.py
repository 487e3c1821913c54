"""Promoted models: promote a checkpoint of a run, or go back to an earlier model. Needs no Airflow.

- `choose`: the checkpoint of a run. `export`: its weights, as a file. `publish`: that file, in the model URI.
- `promote`: the record that promotes it, if a rule holds. `rollback`: a record that promotes an earlier model again.
- `start_from`: what a run starts from. `evaluations`: what was measured of it.
"""

from __future__ import annotations

from airflow_elastic.control.models.export import Exporter, TorchExporter
from airflow_elastic.control.models.promote import Candidate, NotBetter, Request, prepare, promote
from airflow_elastic.control.models.rollback import rollback

__all__ = [
    "Candidate",
    "Exporter",
    "NotBetter",
    "Request",
    "TorchExporter",
    "prepare",
    "promote",
    "rollback",
]
