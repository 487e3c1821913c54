"""What queues of Kueue and Volcano leave to a run, and who waits in them for its share."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.engines.kube.capacity.pods import requested
from airflow_elastic.engines.kube.capacity.queues import kueue_claims, volcano
from airflow_elastic.engines.kube.capacity.queues.kueue_quota import Quotas, by_cluster_queue, uncovered
from airflow_elastic.spec.scaling.observation import Claim
from tests.unit.engines.kube.test_capacity import GPU, worker

AT = 1_800_000_000.0
CREATED = "2027-01-15T07:59:00Z"


def cluster_queue(
    name: str, *, cohort: str | None = None, used: str = "0", nominal: str = "4", **limits: str
) -> dict[str, Any]:
    resource = {
        "name": GPU,
        "nominalQuota": nominal,
        **{f"{key}Limit": value for key, value in limits.items()},
    }
    group = {"coveredResources": [GPU], "flavors": [{"name": "a100", "resources": [resource]}]}
    reserved = [{"name": "a100", "resources": [{"name": GPU, "total": used}]}]
    return {
        "metadata": {"name": name},
        "spec": {"cohortName": cohort, "resourceGroups": [group]},
        "status": {"flavorsReservation": reserved},
    }


def test_a_queue_of_kueue_and_what_it_may_borrow() -> None:
    each = requested(worker(gpu="1"))
    alone = cluster_queue("a", used="1")
    assert by_cluster_queue(alone, [], each) == 3

    def room(own: dict[str, Any], *others: dict[str, Any]) -> int:
        return by_cluster_queue(own, [own, *others], each)

    own = cluster_queue("a", cohort="c", used="1")
    assert room(own, cluster_queue("b", cohort="c", used="1")) == 6
    assert room(own, cluster_queue("b", cohort="c", used="6")) == 1, "another one has borrowed"
    assert room(own, cluster_queue("b", cohort="c", lending="1")) == 4
    assert room(own, cluster_queue("b", cohort="c", lending="1", used="2")) == 4, (
        "it uses first what it never lends"
    )
    limited = cluster_queue("a", cohort="c", used="1", borrowing="1")
    assert room(limited, cluster_queue("b", cohort="c")) == 4
    assert by_cluster_queue(alone, [], requested(worker(gpu="1", cpu="1"))) == 0
    assert uncovered(alone, requested(worker(gpu="1", cpu="1"))) == ["cpu"]


def test_the_flavor_with_the_most_room_counts() -> None:
    queue = cluster_queue("a", used="4")
    more = {"name": "h100", "resources": [{"name": GPU, "nominalQuota": "2"}]}
    queue["spec"]["resourceGroups"][0]["flavors"].append(more)
    assert by_cluster_queue(queue, [], requested(worker(gpu="1"))) == 2


def cohort(name: str, parent: str | None = None, nominal: str = "0", **limits: str) -> dict[str, Any]:
    found = cluster_queue(name, nominal=nominal, **limits)
    return {**found, "spec": {"parentName": parent, "resourceGroups": found["spec"]["resourceGroups"]}}


def test_cohorts_have_quotas_and_cohorts_of_their_own() -> None:
    each = requested(worker(gpu="1"))
    own, other = cluster_queue("a", cohort="c", used="1"), cluster_queue("b", cohort="d", used="1")

    def room(*cohorts: dict[str, Any]) -> int:
        return by_cluster_queue(own, [own, other], each, cohorts)

    assert room() == 3, "the other one is in another cohort"
    assert room(cohort("c", nominal="2")) == 5
    assert room(cohort("c", "all"), cohort("d", "all")) == 6
    assert room(cohort("c", "all"), cohort("d", "all", lending="1")) == 4
    assert room(cohort("c", "all", borrowing="2"), cohort("d", "all")) == 5
    assert room(cohort("c", "all"), cohort("d", "all"), cohort("all", nominal="3")) == 9
    assert room(cohort("c", "d"), cohort("d", "c")) == 0, "nothing is admitted in a circle"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8), st.integers(0, 8), st.none() | st.integers(0, 4), st.none() | st.integers(0, 4)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 4),
)
def test_what_is_free_can_be_used_up_and_no_more(
    given_queues: list[tuple[int, int, int | None, int | None]], shared: int
) -> None:
    """Whoever takes all that is free leaves nothing to itself; and together they never use more than there is."""
    queues = []
    for number, (nominal, used, lending, borrowing) in enumerate(given_queues):
        limits = {"lending": lending, "borrowing": borrowing}
        told = {key: str(value) for key, value in limits.items() if value is not None}
        queues.append(
            cluster_queue(
                f"q{number}", cohort="c", nominal=str(nominal), used=str(min(used, nominal)), **told
            )
        )
    quotas = Quotas(queues, [cohort("c", nominal=str(shared))])
    whole = sum(nominal for nominal, *_ in given_queues) + shared
    for one in queues:
        name = one["metadata"]["name"]
        free = quotas.free(name, "a100", [GPU])
        quotas.use(name, "a100", free)
        assert quotas.free(name, "a100", [GPU]) == {GPU: 0}
    assert sum(quotas.used(one["metadata"]["name"], "a100", GPU) for one in queues) <= whole


def workload(
    name: str, gpus: int, priority: int, queue: str | None = None, local: str = "team"
) -> dict[str, Any]:
    """One that is admitted to a queue, or waits."""
    status = "True" if queue else "False"
    reserved = {"type": "QuotaReserved", "status": status, "lastTransitionTime": CREATED}
    template = {"spec": worker(gpu="1")}
    assigned = [{"name": "main", "flavors": {GPU: "a100"}, "count": gpus}]
    admission = {"clusterQueue": queue, "podSetAssignments": assigned}
    return kueue_claims.slim(
        {
            "metadata": {
                "name": name,
                "namespace": "ml",
                "creationTimestamp": CREATED,
                "ownerReferences": [{"name": f"job-{name}"}],
            },
            "spec": {
                "queueName": local,
                "priority": priority,
                "podSets": [{"name": "main", "count": gpus, "template": template}],
            },
            "status": {"conditions": [reserved], **({"admission": admission} if queue else {})},
        }
    )


LOCAL = [
    {"metadata": {"name": name, "namespace": "ml"}, "spec": {"clusterQueue": queue}}
    for name, queue in (("team", "a"), ("others", "b"))
]


def waiting(queues: list[dict[str, Any]], *workloads: dict[str, Any]) -> list[tuple[str, int]]:
    """The claims on the job of the first workload, which has a worker for each GPU."""
    mine = kueue_claims.ours(workloads, "ml", "job-mine", requested(worker(gpu="1")), 3)
    assert mine is not None
    found = list(kueue_claims.claims(mine, workloads, LOCAL, Quotas(queues), AT))
    assert all(claim.seconds == 60.0 for claim in found)
    return [(claim.name, claim.workers) for claim in found]


def test_workloads_of_a_higher_priority_claim_quota() -> None:
    full, mine = [cluster_queue("a", used="4")], workload("mine", 3, 10, "a")
    assert waiting(full, mine, workload("high", 2, 20)) == [("workload ml/high", 2)]
    assert waiting(full, mine, workload("same", 2, 10)) == []
    assert waiting(full, mine, workload("huge", 4, 20)) == [], "one of the four is somebody else's"
    assert waiting(full, mine, workload("high", 2, 20), workload("low", 1, 15)) == [
        ("workload ml/high", 2),
        ("workload ml/low", 1),
    ]
    assert waiting([cluster_queue("a", used="3")], mine, workload("fits", 1, 20)) == []
    assert waiting(full, mine, workload("nowhere", 1, 20, local="nonesuch")) == []


def test_a_queue_takes_back_what_it_has_lent_whatever_the_priority() -> None:
    lent = [cluster_queue("a", cohort="c", used="6"), cluster_queue("b", cohort="c", used="2")]
    mine = workload("mine", 3, 10, "a")
    assert waiting(lent, mine, workload("theirs", 2, 0, local="others")) == [("workload ml/theirs", 2)]
    assert waiting(lent, mine, workload("more", 3, 0, local="others")) == [], "beyond its own quota"
    assert waiting(lent, mine, workload("more", 3, 20, local="others")) == [("workload ml/more", 3)]


def test_a_job_that_is_not_admitted_has_no_claims() -> None:
    assert (
        kueue_claims.ours([workload("mine", 3, 10)], "ml", "job-mine", requested(worker(gpu="1")), 3) is None
    )


def test_the_priority_of_a_job_is_that_of_its_workload() -> None:
    def priority(*workloads: dict[str, Any]) -> int | None:
        return kueue_claims.priority(workloads, "ml", "job-mine")

    assert priority(workload("other", 1, 30)) is None
    assert priority(workload("mine", 3, 10), workload("other", 1, 30)) == 10, "also while it waits"
    assert priority(workload("mine", 3, 10, "a")) == 10
    assert priority({**workload("mine", 3, 10, "a"), "admitted": False}) is None, "it is finished"


def volcano_queue(name: str, **spec: Any) -> dict[str, Any]:
    used = spec.pop("used", "0")
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocated": {"cpu": used}}}


def test_a_queue_of_volcano() -> None:
    each = requested(worker(cpu="2"))
    own = volcano_queue("a", capability={"cpu": "10"}, deserved={"cpu": "6"}, used="4500m")
    assert volcano.room(volcano.queue_of(own), each) == 2
    assert volcano.own_room(volcano.queue_of(own), each) == 0
    assert volcano.room(volcano.queue_of({"metadata": {"name": "a"}, "spec": {}}), each) is None
    others = [own, volcano_queue("b", guarantee={"resource": {"cpu": "9"}})]
    assert volcano.room(volcano.queue_of(own, others, {"cpu": Decimal(16)}), each) == 1
    assert volcano.room(volcano.queue_of(own, others, None), each) == 2, "what the cluster has is unknown"


def test_gangs_of_a_higher_priority_claim_room_of_a_queue() -> None:
    def gang(name: str, cpu: str, phase: str = "Pending", queue: str = "a") -> dict[str, Any]:
        metadata = {"name": name, "namespace": "ml", "creationTimestamp": CREATED}
        spec = {"queue": queue, "minResources": {"cpu": cpu}}
        return volcano.slim({"metadata": metadata, "spec": spec, "status": {"phase": phase}})

    def pod_of(name: str, priority: int) -> dict[str, Any]:
        return {"metadata": {"namespace": "ml"}, "spec": {"gang": name, "priority": priority}}

    queue = volcano.queue_of(volcano_queue("a", capability={"cpu": "10"}, used="9"))
    groups = [
        gang("high", "4"),
        gang("low", "4"),
        gang("runs", "4", "Running"),
        gang("other", "4", queue="b"),
    ]
    pods = [pod_of("high", 20), pod_of("low", 5), pod_of("runs", 20), pod_of("other", 20)]
    found = volcano.waiting(groups, "a", pods)
    assert list(volcano.claims(queue, found, 10, requested(worker(cpu="2")), 4, AT)) == [
        Claim("gang ml/high", 2, 20, 60.0)
    ]
    assert list(volcano.claims(queue, found, 30, requested(worker(cpu="2")), 4, AT)) == []
    assert list(volcano.claims(queue, found, 10, requested(worker(cpu="2")), 1, AT)) == []
