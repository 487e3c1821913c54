"""Who waits for room that workers of a run have, and how many of them must leave for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.engines.kube.capacity.asked import Asked
from airflow_elastic.engines.kube.capacity.claims import REMOVAL_PRIORITY, Worker, claims
from airflow_elastic.engines.kube.capacity.pods import requested
from airflow_elastic.engines.kube.capacity.room import free_places
from airflow_elastic.engines.kube.capacity.view import View, slim_node, slim_pod, view
from airflow_elastic.engines.kube.options import KubeOptions
from airflow_elastic.spec.scaling.observation import Claim

NOW = 1_800_000_000.0
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


def node(name: str, cpu: int = 8, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": spec,
        "status": {
            "allocatable": {"cpu": str(cpu), "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(
    name: str, cpu: int, on: str | None = None, priority: int = 0, age: float = 100.0, **more: Any
) -> Any:
    """One that has a node, or one that the scheduler could not place."""
    status = {} if on else {"phase": "Pending", "conditions": [UNSCHEDULABLE]}
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "labels": {"airflow-elastic/job": "ours"} if name.startswith("w") else {},
            "creationTimestamp": datetime.fromtimestamp(NOW - age, UTC).isoformat(),
            **more.pop("metadata", {}),
        },
        "spec": {
            "containers": [{"resources": {"requests": {"cpu": str(cpu)}}}],
            "priority": priority,
            "nodeName": on,
            **more,
        },
        "status": {**status, **more.pop("status", {})},
    }


def seen(nodes: list[dict[str, Any]], pods: list[dict[str, Any]], former: View | None = None) -> View:
    at = NOW if former is None else former.at + 30
    return view(at, map(slim_node, nodes), map(slim_pod, pods), former)


def own(found: View) -> list[Worker]:
    pods = found.own("ml", "airflow-elastic/job", "ours")
    return [Worker(int(one["metadata"]["name"][1:]), one) for one in pods]


def claimed(found: View) -> dict[str, int]:
    return {claim.name: claim.workers for claim in claims(found, own(found))}


TWO = [pod("w0", 6, "a"), pod("w1", 6, "b")]


def test_a_waiting_pod_of_a_higher_priority_claims_the_last_worker() -> None:
    found = seen([node("a"), node("b")], [*TWO, pod("urgent", 4, priority=10, age=40)])
    assert claims(found, own(found)) == (Claim("pod ml/urgent", 1, 10, 40.0),)


def test_room_that_is_given_back_is_not_claimed_once_more() -> None:
    """The pod of a worker that was sent away may take its time to go. Then the others would have to go, too."""
    urgent = pod("urgent", 4, priority=10)
    found = seen([node("a"), node("b")], [*TWO, urgent])
    first, second = own(found)
    assert claims(found, [first], [second]) == ()
    ends = seen(
        [node("a"), node("b")], [*TWO[:1], pod("w1", 6, "b", metadata={"deletionTimestamp": "…"}), urgent]
    )
    assert claimed(ends) == {}
    both = seen([node("a"), node("b")], [*TWO, urgent, pod("urgent2", 6, priority=10)])
    first, second = own(both)
    assert [(one.name, one.workers) for one in claims(both, [first], [second])] == [("pod ml/urgent2", 1)]


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        (pod("same", 4), "it has no higher priority"),
        (pod("small", 2, priority=10), "there is room: it waits for something else"),
        (pod("huge", 9, priority=10), "no node is so large"),
        (pod("elsewhere", 4, priority=10, nodeSelector={"zone": "x"}), "our nodes are none for it"),
        (pod("gated", 4, priority=10, schedulingGates=[{"name": "x"}]), "it must not start yet"),
        (pod("served", 4, priority=10, status={"nominatedNodeName": "a"}), "others are being ended for it"),
        (pod("over", 4, priority=10, status={"phase": "Failed"}), "it has ended"),
    ],
)
def test_what_is_no_claim(waiting: dict[str, Any], why: str) -> None:
    assert claimed(seen([node("a"), node("b")], [*TWO, waiting])) == {}, why


def test_workers_leave_from_the_end_so_room_of_the_first_one_costs_all() -> None:
    first = pod("urgent", 4, priority=10, nodeSelector={"kubernetes.io/hostname": "a"})
    assert claimed(seen([node("a"), node("b")], [*TWO, first])) == {"pod ml/urgent": 2}


def test_a_gang_is_one_claim_and_claims_nothing_if_it_cannot_be_whole() -> None:
    def gang(count: int) -> list[dict[str, Any]]:
        marked = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
        return [pod(f"g{i}", 4, priority=10, metadata=marked) for i in range(count)]

    there = [node("a"), node("b")]
    assert claimed(seen(there, [*TWO, *gang(2)])) == {"gang ml/g of 2": 1}, "two fit where one worker was"
    assert claimed(seen(there, [*TWO, *gang(4)])) == {"gang ml/g of 4": 2}
    assert claimed(seen(there, [*TWO, *gang(5)])) == {}


def test_two_claims_do_not_count_on_the_same_room() -> None:
    waiting = [pod("first", 8, priority=20), pod("second", 8, priority=10)]
    assert claimed(seen([node("a"), node("b")], [*TWO, *waiting])) == {"pod ml/first": 1, "pod ml/second": 1}


def test_a_node_that_is_closed_or_goes_claims_its_workers() -> None:
    there = [node("a"), node("b", unschedulable=True)]
    before = seen(there, TWO)
    assert claims(before, own(before)) == (Claim("node b (it is cordoned)", 1, REMOVAL_PRIORITY, 0.0),)
    later = seen(there, TWO, before)
    assert claims(later, own(later))[0].seconds == 30.0, "from one look to the next"
    assert claims(seen([node("a"), node("b")], TWO, later), own(later)) == ()


@pytest.mark.parametrize(
    ("key", "effect", "tolerations", "counts"),
    [
        ("ToBeDeletedByClusterAutoscaler", "NoSchedule", [], True),
        ("karpenter.sh/disrupted", "NoSchedule", [], True),
        ("aws-node-termination-handler/spot-itn", "NoSchedule", [], True),
        ("reserved", "NoExecute", [], True),
        ("reserved", "NoSchedule", [], False),
        ("reserved", "PreferNoSchedule", [], False),
        ("node.kubernetes.io/not-ready", "NoExecute", [], False),
        ("reserved", "NoExecute", [{"key": "reserved", "operator": "Exists"}], False),
        ("reserved", "NoExecute", [{"operator": "Exists", "tolerationSeconds": 60}], True),
    ],
)
def test_taints_that_end_a_node(key: str, effect: str, tolerations: Any, counts: bool) -> None:
    there = [node("a", taints=[{"key": key, "effect": effect}])]
    found = claimed(seen(there, [pod("w0", 1, "a", tolerations=tolerations)]))
    assert list(found.values()) == ([1] if counts else [])


def test_pods_that_are_about_to_come_take_room() -> None:
    new: dict[str, Any] = {"age": 1, "status": {"conditions": []}}
    there, one = [node("a")], pod("any", 2)["spec"]

    def free(*pods: Any) -> dict[str, int]:
        found = seen(there, list(pods))
        return free_places(found, Asked(one, KubeOptions(image="any")))

    assert free() == {"a": 4}
    assert free(pod("new", 2, **new)) == {"a": 3}
    assert free(pod("large", 9, **new)) == {"a": 4}, "it finds no place"
    assert free(pod("old", 2, age=600, status={"conditions": []})) == {"a": 4}, "it waits for its gang"
    assert free(pod("nominated", 2, status={"nominatedNodeName": "a"})) == {"a": 3}
    assert free(pod("refused", 2)) == {"a": 4}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 8)), max_size=8),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 3)), max_size=5),
)
def test_when_the_claimed_workers_leave_the_claims_can_be_placed(
    workers: list[tuple[int, int]], waiting: list[tuple[int, int]]
) -> None:
    """And with one less the first of them could not."""
    left, ours = {f"n{i}": 8 for i in range(4)}, []
    for number, (on, cpu) in enumerate(workers):
        if left[f"n{on}"] >= cpu:
            left[f"n{on}"] -= cpu
            ours.append(pod(f"w{number}", cpu, f"n{on}", priority=1))
    asking = [pod(f"x{i}", cpu, priority=priority) for i, (cpu, priority) in enumerate(waiting)]
    there = [node(name) for name in left]
    found = seen(there, [*ours, *asking])
    told = claims(found, own(found))
    assert sum(one.workers for one in told) <= len(ours)
    assert all(one.priority > 1 and one.workers >= 1 for one in told)
    if told:
        names = {one.name for one in told}
        kept = ours[: len(ours) - sum(one.workers for one in told)]
        new = {"status": {"conditions": []}}
        comes = [
            {**one, **new}
            for one in sorted(asking, key=lambda one: -one["spec"]["priority"])
            if f"pod ml/{one['metadata']['name']}" in names
        ]
        assert sum(pod_cpu(one) for one in comes) <= 32 - sum(pod_cpu(one) for one in kept)
        fewer = seen(there, ours[: len(ours) - told[0].workers + 1])
        first = next(one for one in asking if f"pod ml/{one['metadata']['name']}" == told[0].name)
        assert sum(free_places(fewer, Asked(first["spec"], KubeOptions(image="any"))).values()) == 0


def pod_cpu(one: dict[str, Any]) -> int:
    return int(requested(one["spec"])["cpu"])
