"""How to reach a cluster, out of an Airflow connection of the type `kubernetes`."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import BaseHook

from airflow_elastic.adapters.kube import Access
from airflow_elastic.spec.errors import InvalidInput


def access(conn_id: str) -> Access:
    """What the connection says, in the words of Airflow's own Kubernetes provider.

    Of its extra are read: `in_cluster`, `kube_config_path`, `kube_config` (a kubeconfig, as an object or as text) and
    `cluster_context`. With none of them the usual places hold: KUBECONFIG, `~/.kube/config`, the pod's own account.

    Raises:
        AirflowNotFoundException: there is no such connection.
        InvalidInput: it says two things at once.
    """
    extra = BaseHook.get_connection(conn_id).extra_dejson
    given = {name: _field(extra, name) for name in ("in_cluster", "kube_config_path", "kube_config")}
    named = [name for name, value in given.items() if value]
    if len(named) > 1:
        raise InvalidInput(f"the connection {conn_id!r} gives {' and '.join(named)}; allowed: one of them")
    content = given["kube_config"]
    return Access(
        kubeconfig=given["kube_config_path"] or None,
        context=_field(extra, "cluster_context") or None,
        content=(content if isinstance(content, str) else json.dumps(content)) if content else None,
        in_cluster=bool(given["in_cluster"]),
    )


def _field(extra: dict[str, Any], name: str) -> Any:
    """A field, also under the long name that old connections have."""
    return extra.get(name, extra.get(f"extra__kubernetes__{name}"))
