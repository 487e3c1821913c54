"""Regions of kubernetes.md: what the engines own in a pod."""

from __future__ import annotations

from airflow_elastic.engines.kube.render.owned import OWNED
from generator.markdown import table


def owned_names() -> str:
    rows = ((one.what, one.use, str(one.fate), one.rule) for one in OWNED)
    return table(("what", "what for", "your own is", "allowed, or what holds"), rows)
