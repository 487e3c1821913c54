"""The worker for which room is looked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from airflow_elastic.engines.kube.options import KubeOptions


class Asked(NamedTuple):
    """A worker.

    Attributes:
        pod: the `spec` of its pod.
        options: name the namespace, the queue and the topology.
        own: the nodes that the run uses already.
    """

    pod: Mapping[str, Any]
    options: KubeOptions
    own: frozenset[str] = frozenset()
