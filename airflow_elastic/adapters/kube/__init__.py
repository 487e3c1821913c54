"""Kubernetes as raw JSON: a client, errors that teach, and one shared watch. Knows nothing of training.

Raw, because models cost twenty times as much as the JSON they are made from; small, because six verbs do.
"""

from airflow_elastic.adapters.kube.access import Access
from airflow_elastic.adapters.kube.client import Client, connect
from airflow_elastic.adapters.kube.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    NoSuchKind,
    OverQuota,
)
from airflow_elastic.adapters.kube.resources import Resource

__all__ = [
    "Access",
    "Client",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "KubeError",
    "Missing",
    "NoSuchKind",
    "OverQuota",
    "Resource",
    "connect",
]
