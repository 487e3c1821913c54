"""How to reach a cluster, from an Airflow connection of the type `kubernetes`."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import BaseHook

from airflow_elastic.adapters.kube import Access
from airflow_elastic.spec.errors import InvalidInput


def access(conn_id: str) -> Access:
    """Read the connection. Its fields have the names of Airflow's own Kubernetes provider.

    These keys of its extra are read: `in_cluster`, `kube_config_path`, `kube_config` (a kubeconfig, as an object or as
    text) and `cluster_context`. Without them the usual places apply: KUBECONFIG, `~/.kube/config`, the pod's service
    account.

    Raises:
        AirflowNotFoundException: there is no such connection.
        InvalidInput: more than one of the first three keys is set.
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
    """A field, also under its long name in old connections."""
    return extra.get(name, extra.get(f"extra__kubernetes__{name}"))
