"""How many workers fit: by nodes, quotas and queues, on objects as an API server gives them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.engines.kube.capacity import nodes, quotas
from airflow_elastic.engines.kube.capacity.asked import Asked
from airflow_elastic.engines.kube.capacity.pods import copies, left, requested
from airflow_elastic.engines.kube.capacity.room import free_places
from airflow_elastic.engines.kube.capacity.view import slim_node, slim_pod, view
from airflow_elastic.engines.kube.options import KubeOptions

GPU = "nvidia.com/gpu"


def node(
    name: str, *, taints: Any = (), labels: Any = None, ready: str = "True", **free: str
) -> dict[str, Any]:
    amounts = {
        "cpu": "8",
        "memory": "32Gi",
        "pods": "110",
        **{GPU if k == "gpu" else k: v for k, v in free.items()},
    }
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": amounts, "conditions": [{"type": "Ready", "status": ready}]},
    }


def pod(node_name: str | None = None, phase: str = "Running", **requests: str) -> dict[str, Any]:
    of_all = {GPU if key == "gpu" else key: value for key, value in requests.items()}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"requests": of_all}}]}
    return {
        "metadata": {"name": "p"},
        "spec": {**spec, "nodeName": node_name},
        "status": {"phase": phase},
    }


def places(there: list[dict[str, Any]], pods: list[dict[str, Any]], one: dict[str, Any]) -> dict[str, int]:
    seen = view(1e9, map(slim_node, there), map(slim_pod, pods))
    return free_places(seen, Asked(one, KubeOptions(image="any")))


def worker(**requests: str) -> dict[str, Any]:
    spec: dict[str, Any] = pod(**requests)["spec"]
    return spec


def test_what_runs_is_taken_off_and_what_has_ended_is_not() -> None:
    there = [node("a"), node("b")]
    pods = [
        pod("a", cpu="6"),
        pod("b", "Succeeded", cpu="8"),
        pod("b", "Pending", memory="30Gi"),
        pod(None, cpu="8"),
    ]
    assert places(there, pods, worker(cpu="2")) == {"a": 1, "b": 4}
    assert places(there, pods, worker(cpu="1", memory="2Gi")) == {"a": 2, "b": 1}
    assert places(there, pods, worker(gpu="1")) == {"a": 0, "b": 0}, "no node has one"


def tainted(effect: str, **more: str) -> dict[str, Any]:
    return node("a", taints=[{"key": "gpu", "effect": effect, **more}])


def tolerating(**toleration: str) -> dict[str, Any]:
    return {"tolerations": [toleration]}


@pytest.mark.parametrize(
    ("given_node", "more", "why"),
    [
        (node("a", ready="Unknown"), {}, "not ready"),
        (tainted("NoSchedule"), {}, "taint gpu"),
        (tainted("PreferNoSchedule"), {}, None),
        (tainted("NoSchedule", value="yes"), tolerating(key="gpu", value="no"), "taint"),
        (tainted("NoSchedule", value="yes"), tolerating(key="gpu", value="yes"), None),
        (tainted("NoSchedule"), tolerating(operator="Exists"), None),
        (tainted("NoExecute"), tolerating(key="gpu", operator="Exists", effect="NoSchedule"), "taint"),
        (node("a", labels={"zone": "x"}), {"nodeSelector": {"zone": "y"}}, "zone=y"),
        (node("a", labels={"zone": "x"}), {"nodeSelector": {"zone": "x"}}, None),
    ],
)
def test_why_a_node_is_not_used(given_node: dict[str, Any], more: dict[str, Any], why: str | None) -> None:
    found = nodes.why_not(given_node, {**worker(cpu="1"), **more})
    assert found is None if why is None else why in (found or "")
    cordoned = {**given_node, "spec": {**given_node["spec"], "unschedulable": True}}
    assert nodes.why_not(cordoned, {**worker(cpu="1"), **more}) is not None


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        ({"key": "zone", "operator": "In", "values": ["x", "y"]}, True),
        ({"key": "zone", "operator": "NotIn", "values": ["x"]}, False),
        ({"key": "rack", "operator": "NotIn", "values": ["x"]}, True),
        ({"key": "zone", "operator": "Exists"}, True),
        ({"key": "zone", "operator": "DoesNotExist"}, False),
        ({"key": "gpus", "operator": "Gt", "values": ["4"]}, True),
        ({"key": "gpus", "operator": "Lt", "values": ["8"]}, False),
        ({"key": "rack", "operator": "Gt", "values": ["4"]}, False),
    ],
)
def test_required_affinity(expression: dict[str, Any], fits: bool) -> None:
    def with_terms(*terms: dict[str, Any]) -> dict[str, Any]:
        required = {"nodeSelectorTerms": list(terms)}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        return {**worker(cpu="1"), "affinity": affinity}

    there = node("a", labels={"zone": "x", "gpus": "8"})
    one = {"matchExpressions": [expression]}
    assert (nodes.why_not(there, with_terms(one)) is None) is fits
    by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    assert nodes.why_not(there, with_terms(one, by_name)) is None, "one of the terms is enough"
    assert nodes.why_not(there, with_terms({})) is not None, "an empty term matches nothing"


def test_in_one_domain_is_the_domain_with_the_most_room() -> None:
    zones = {"a": "x", "b": "y", "c": "y"}
    there = {name: node(name, labels={"zone": zone}) for name, zone in zones.items()} | {"d": node("d")}
    room = {"a": 4, "b": 3, "c": 2, "d": 9}
    assert nodes.in_one_domain(room, there, "zone") == {"b": 3, "c": 2}
    assert nodes.in_one_domain(room, there, "rack") == {}
    assert nodes.in_one_domain(room, there, "zone", ["a"]) == {"a": 4}, "where the run is already"
    assert nodes.in_one_domain(room, there, "zone", ["d"]) == {"b": 3, "c": 2}, "which is in none"


def test_a_pod_requests_what_its_containers_need_together_or_one_before_them() -> None:
    def one(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    both = {"containers": [one("1"), one("2")]}
    assert requested(both)["cpu"] == 3
    assert requested({**both, "initContainers": [one("5")]})["cpu"] == 5
    sidecar = one("2", restartPolicy="Always")
    assert requested({**both, "initContainers": [sidecar, one("4")]})["cpu"] == 6, "one runs beside the other"
    assert requested({**both, "initContainers": [one("4"), sidecar]})["cpu"] == 5
    assert requested({**both, "overhead": {"cpu": "250m"}})["cpu"] == Decimal("3.25")
    assert requested({**both, "resources": {"requests": {"cpu": "8"}}})["cpu"] == 8, "of the whole pod"
    assert requested({"containers": [{"resources": {"limits": {GPU: "2"}}}]})[GPU] == 2
    assert requested({"containers": [{}]}) == {"pods": 1}


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=8),
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 10)), max_size=20),
    st.integers(1, 5),
)
def test_as_many_fit_as_can_be_placed_one_after_the_other(
    sizes: list[int], running: list[tuple[int, int]], each: int
) -> None:
    there = [node(f"n{i}", cpu=str(size)) for i, size in enumerate(sizes)]
    pods = [pod(f"n{i}", cpu=str(cpu)) for i, cpu in running if i < len(sizes)]
    room = places(there, pods, worker(cpu=str(each)))
    for name, count in room.items():
        pods += [pod(name, cpu=str(each))] * count
    assert set(places(there, pods, worker(cpu=str(each))).values()) <= {0}


def test_a_quota_of_a_namespace() -> None:
    def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        return {"spec": spec, "status": {"hard": hard, "used": used or {}}}

    each = requested(worker(cpu="2", memory="4Gi", gpu="1"))
    assert quotas.by_quota(quota({f"requests.{GPU}": "8"}, {f"requests.{GPU}": "3"}), each, {}) == 5
    assert quotas.by_quota(quota({"cpu": "8", "memory": "10Gi"}, {"cpu": "1"}), each, {}) == 2
    assert quotas.by_quota(quota({"pods": "3"}, {"pods": "5"}), each, {}) == 0
    assert quotas.by_quota(quota({"services": "3"}), each, {}) is None
    assert quotas.by_quota(quota({"limits.cpu": "8"}), each, {"cpu": Decimal(4)}) == 2


@pytest.mark.parametrize(
    ("scopes", "counts"),
    [
        ({}, True),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, True),
        ({"scopes": ["NotBestEffort", "Terminating"]}, False),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        ({"operator": "In", "values": ["high", "low"]}, True),
        ({"operator": "NotIn", "values": ["low"]}, False),
        ({"operator": "DoesNotExist"}, False),
    ],
)
def test_a_quota_counts_the_pods_of_its_scopes(scopes: dict[str, Any], counts: bool) -> None:
    told = {"scopeName": "PriorityClass", **scopes}
    spec = scopes if "operator" not in scopes else {"scopeSelector": {"matchExpressions": [told]}}
    one = {**worker(cpu="1"), "priorityClassName": "low"}
    assert quotas.applies({"spec": spec}, one) is counts
    slimmed = slim_pod({"metadata": {"name": "p"}, "spec": one})["spec"]
    assert quotas.applies({"spec": spec}, slimmed) is counts


def test_nothing_fits_into_less_than_nothing() -> None:
    assert copies(left({"cpu": Decimal(1)}, [{"cpu": Decimal(2)}]), {"cpu": Decimal(1)}) == 0
