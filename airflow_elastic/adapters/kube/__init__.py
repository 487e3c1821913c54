"""Kubernetes as raw JSON: a client, errors that teach, and one shared watch. Knows nothing of training.

Raw, because building the client's models costs twenty times as much as the JSON; small, because six verbs are enough.
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
