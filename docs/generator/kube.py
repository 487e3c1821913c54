"""Regions of pods.md: the fields of a pod that the engines own, and the fields of a job that a run takes over."""

from __future__ import annotations

from airflow_elastic.engines.kube.render.job_fields import BECOME, REFUSED
from airflow_elastic.engines.kube.render.reserved_fields import RESERVED_FIELDS
from generator.markdown import code, table


def owned_names() -> str:
    rows = ((one.what, one.use, str(one.fate), one.rule) for one in RESERVED_FIELDS)
    return table(("what", "what for", "your own is", "allowed, or what holds"), rows)


def owner_fields() -> str:
    rows = [(", ".join(map(code, name.split(", "))), what) for name, what in BECOME.items()]
    rows += [(code(name), f"refused; {why}") for name, why in REFUSED.items()]
    return table(("field of the job", "what becomes of it"), rows)
