"""What Kueue and Volcano need to see of a job, and what is read of their answers."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.kind import Kind, read_job
from airflow_elastic.engines.kube.kinds.elasticjob import ElasticJobKind
from airflow_elastic.engines.kube.kinds.job import JobKind
from airflow_elastic.engines.kube.kinds.tensorstack import TensorStackKind, TensorStackOptions
from airflow_elastic.engines.kube.kinds.trainjob import TrainJobKind
from airflow_elastic.engines.kube.options import KubeOptions, options_of
from airflow_elastic.engines.kube.queues import kueue
from airflow_elastic.engines.kube.watch import pod_status
from airflow_elastic.spec.errors import EngineError, SpecError
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import Waiting, WorkerPhase
from tests.support.builders import spec

ENGINES = ("job", "pytorchjob", "trainjob")


def run(engine: str, workers: Workers, **options: Any) -> RunSpec:
    return spec(engine=engine, workers=workers, engine_options={"image": "trainer:1", **options})


def rendered(engine: str, workers: Workers, count: int, **options: Any) -> list[dict[str, Any]]:
    job = Job("s3://bucket/run", run(engine, workers, **options), 1, count)
    items: list[dict[str, Any]] = find_engine(engine).render(job)["items"]
    return items


def found(tree: Any, key: str) -> list[Any]:
    """All values of a key, wherever they stand."""
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    here = [tree[key]] if isinstance(tree, dict) and key in tree else []
    return here + [one for value in values for one in found(value, key)]


# -- Volcano -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gang_is_made_first_and_its_pods_belong_to_it(engine: str) -> None:
    group, *others = rendered(engine, Workers(3, min=2, max=5), 3, queueing="volcano", queue="team")
    assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert group["spec"] == {"minMember": 2, "queue": "team"}
    names = found(others, "scheduling.k8s.io/group-name")
    assert names
    assert set(names) == {group["metadata"]["name"]}
    assert set(found(others, "schedulerName")) == {"volcano"}
    assert not found(others, "kueue.x-k8s.io/queue-name")


@pytest.mark.parametrize(
    ("workers", "count", "fewest"),
    [(Workers(4), 4, 4), (Workers(4, min=1, max=8), 4, 1), (Workers(4, min=3, max=8), 8, 3)],
)
def test_a_gang_is_worth_starting_with_the_fewest_workers(workers: Workers, count: int, fewest: int) -> None:
    group, *_ = rendered("job", workers, count, queueing="volcano")
    assert group["spec"] == {"minMember": fewest}


@pytest.mark.parametrize(
    ("amount", "three"),
    [("4", "12"), ("500m", "1500m"), ("1.5Gi", "4.5Gi"), ("0.1", "0.3"), ("2k", "6k"), ("10", "30")],
)
def test_a_queue_is_asked_for_what_the_fewest_workers_need(amount: str, three: str) -> None:
    workers = Workers(3, resources={"vendor.com/gpu": amount})
    group, *_ = rendered(
        "pytorchjob", workers, 3, queueing="volcano", priority_class="high", scheduler="volcano-2"
    )
    asked = {"minResources": {"vendor.com/gpu": three}, "priorityClassName": "high"}
    assert group["spec"] == {"minMember": 3, **asked}


def test_without_volcano_there_is_no_gang() -> None:
    kinds = [item["kind"] for item in rendered("job", Workers(2), 2)]
    assert kinds == ["Job", "Service"]


@pytest.mark.parametrize("engine", ["elasticjob", "pytorchtrainingjob"])
def test_engines_whose_pods_cannot_be_put_into_a_gang_say_so(engine: str) -> None:
    with pytest.raises(SpecError, match=r"engine_options\.queueing.*volcano.*unset"):
        find_engine(engine).check(run(engine, Workers(2), queueing="volcano"))


def test_bad_words_are_refused() -> None:
    with pytest.raises(SpecError, match=r"engine_options\.queueing.*slurm.*kueue, volcano"):
        find_engine("job").check(run("job", Workers(1), queueing="slurm"))
    with pytest.raises(SpecError, match=r"engine_options\.queue_priority.*priority_class"):
        find_engine("job").check(
            run("job", Workers(1), queueing="volcano", queue="team", queue_priority="high")
        )


@pytest.mark.parametrize(("label", "option"), [("queue-name", "queue"), ("priority-class", "queue_priority")])
def test_a_queue_is_no_label(label: str, option: str) -> None:
    """As one we would not know of it: a TrainJob would not end cleanly, and a scale step would end all pods."""
    labels = {f"kueue.x-k8s.io/{label}": "team"}
    for options in ({"labels": labels}, {"pod_template": {"metadata": {"labels": labels}}}):
        with pytest.raises(SpecError, match=rf"labels\.kueue\.x-k8s\.io/{label}.*say it as {option}"):
            find_engine("trainjob").check(run("trainjob", Workers(1), **options))


def test_a_pod_that_its_scheduler_has_not_looked_at_is_queued() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"schedulerName": "volcano"}, "status": {"phase": "Pending"}}
    worker = pod_status.read_pod(pod_status.slim(pod), "trainer", "node-0")
    assert worker.waiting is Waiting.QUEUED
    assert worker.reason == "the scheduler volcano has not taken it up yet"
    pod["spec"]["schedulerName"] = "default-scheduler"
    assert pod_status.read_pod(pod_status.slim(pod), "trainer", "node-0").waiting is Waiting.STARTING


# -- Kueue -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_the_owner_names_its_queue_and_its_pods_do_not(engine: str) -> None:
    items = rendered(engine, Workers(2), 2, queue="team", queue_priority="high")
    (owner,) = [item for item in items if item["kind"].lower() == engine]
    named = {"kueue.x-k8s.io/queue-name": "team", "kueue.x-k8s.io/priority-class": "high"}
    assert named.items() <= owner["metadata"]["labels"].items()
    queues = [*found(items, "kueue.x-k8s.io/queue-name")]
    assert queues == ["team"], "Kueue would queue each pod beside the job"


def workload(*conditions: tuple[str, str, str], uid: str = "u", name: str = "job-j-0") -> dict[str, Any]:
    told = [{"type": kind, "status": status, "message": message} for kind, status, message in conditions]
    owners = [{"uid": uid, "name": "j"}]
    return {"metadata": {"name": name, "ownerReferences": owners}, "spec": {}, "status": {"conditions": told}}


NO_ROOM = ("QuotaReserved", "False", "couldn't assign flavors to pod set main: 2 more needed")
HAS_ROOM = ("QuotaReserved", "True", "Quota reserved in ClusterQueue cq")
TAKEN = ("Evicted", "True", "Preempted to accommodate a workload")


@pytest.mark.parametrize(
    ("workloads", "said"),
    [
        ([], None),
        ([workload(NO_ROOM)], NO_ROOM[2]),
        ([workload(HAS_ROOM)], None),
        ([workload(HAS_ROOM, TAKEN)], TAKEN[2]),
        ([workload(NO_ROOM, TAKEN)], TAKEN[2]),
        ([workload(NO_ROOM, ("Evicted", "False", "Previously: …"))], NO_ROOM[2]),
        ([workload(NO_ROOM, uid="another job's")], None),
        ([workload(NO_ROOM, uid="a pod's", name="j")], NO_ROOM[2]),
        ([workload(NO_ROOM, ("Finished", "True", "replaced")), workload(HAS_ROOM)], None),
    ],
)
def test_what_kueue_says_of_a_job_that_it_holds(workloads: list[dict[str, Any]], said: str | None) -> None:
    assert kueue.why_held(map(kueue.slim, workloads), {"metadata": {"uid": "u", "name": "j"}}) == said


@pytest.mark.parametrize(
    ("active", "conditions", "runs", "out"),
    [
        (True, (NO_ROOM,), True, False),
        (True, (HAS_ROOM,), True, False),
        (True, (NO_ROOM, TAKEN), True, False),  # it is queued anew
        (False, (HAS_ROOM,), False, False),  # Kueue has not heard yet
        (False, (HAS_ROOM, TAKEN), False, True),
        (False, (NO_ROOM, TAKEN), False, True),
        (True, (HAS_ROOM, ("Finished", "True", "done")), False, True),
    ],
)
def test_a_workload_lets_no_job_run_once_kueue_has_seen_that_it_is_not_active(
    active: bool, conditions: tuple[tuple[str, str, str], ...], runs: bool, out: bool
) -> None:
    one = kueue.slim({**workload(*conditions), "spec": {"active": active}})
    assert (kueue.may_run(one), kueue.is_evicted(one)) == (runs, out)


def test_a_queue_of_another_scheduler_is_none_of_kueues() -> None:
    """On a cluster without Kueue a PyTorchTrainingJob with a queue was refused, and was never scaled in place."""
    theirs = options_of(run("pytorchtrainingjob", Workers(1), queue="team"), TensorStackOptions)
    assert not theirs.by_kueue
    assert kueue.changes_in_place(TensorStackKind().resource, theirs)
    assert options_of(run("job", Workers(1), queue="team")).by_kueue


@pytest.mark.parametrize(
    ("name", "why"),
    [("job", "end all its pods and queue it again"), ("trainjob", "not see it, nor count them")],
)
async def test_a_job_whose_change_kueue_would_not_bear_is_not_scaled_in_place(name: str, why: str) -> None:
    engine = find_engine(name)
    assert isinstance(engine, KubeEngine)
    queued = Job("s3://bucket/run", run(name, Workers(2, min=1, max=4), queue="team"), 1, 2)
    with pytest.raises(EngineError, match=rf"Kueue would {why}"):
        await engine.scale(queued, 3)


def test_a_queued_trainjob_brings_its_own_runtime() -> None:
    """Kueue 0.16 removes what a TrainJob gives to somebody else's."""
    queued = run("trainjob", Workers(1), queue="team", runtime={"name": "theirs"})
    with pytest.raises(
        SpecError, match=r"engine_options\.queue.*team.*unset with the runtime theirs.*no `runtime`"
    ):
        find_engine("trainjob").check(queued)


@pytest.mark.parametrize(
    ("kind", "options", "may"),
    [
        (JobKind(), {}, True),
        (JobKind(), {"queue": "q"}, False),
        (JobKind(), {"queue": "q", "queueing": "volcano"}, True),
        (JobKind(), {"queue": "q", "annotations": {kueue.ELASTIC_ANNOTATION: "true"}}, True),
        (TrainJobKind(), {"queue": "q", "annotations": {kueue.ELASTIC_ANNOTATION: "true"}}, False),
        (TrainJobKind(), {}, True),
    ],
)
def test_when_a_size_changes_in_place(kind: Kind, options: dict[str, Any], may: bool) -> None:
    assert kueue.changes_in_place(kind.resource, KubeOptions(image="i", **options)) is may


@pytest.mark.parametrize(
    ("workers", "count", "more", "fewest"),
    [
        (Workers(4, min=2), 4, {}, "2"),
        (Workers(4, min=2), 2, {}, None),  # it has been scaled down
        (Workers(4), 4, {}, None),
        (Workers(4, min=2), 4, {"launcher": "torchrun-plain"}, None),  # which would wait for the others
        (Workers(4, min=2), 4, {"queueing": "volcano"}, None),
        (Workers(4, min=2), 4, {"annotations": {kueue.ELASTIC_ANNOTATION: "true"}}, None),
        (Workers(4, min=2), 4, {"annotations": {kueue.FEWEST_ANNOTATION: "3"}}, "3"),
        (Workers(4, min=2), 4, {"annotations": {kueue.FEWEST_ANNOTATION: "4"}}, None),  # turned off
        (
            Workers(4, min=2),
            4,
            {"annotations": {kueue.FEWEST_ANNOTATION: "some"}},
            "some",
        ),  # Kueue says why not
        (Workers(4, min=2), 4, {"annotations": {kueue.FEWEST_ANNOTATION: "9" * 5000}}, "9" * 5000),
        (Workers(4, min=2), 4, {"annotations": {kueue._EQUAL_ANNOTATION: "true"}}, None),
    ],
)
def test_with_how_many_workers_a_queue_may_let_a_job_begin(
    workers: Workers, count: int, more: dict[str, Any], fewest: str | None
) -> None:
    launcher = more.pop("launcher", "torchrun")
    run = spec(
        engine="job",
        launcher=launcher,
        workers=workers,
        engine_options={"image": "t:1", "queue": "q", **more},
    )
    job = next(
        one
        for one in find_engine("job").render(Job("s3://b/r", run, 1, count))["items"]
        if one["kind"] == "Job"
    )
    assert job["metadata"]["annotations"].get("kueue.x-k8s.io/job-min-parallelism") == fewest


def admitted(in_queue: bool) -> dict[str, Any]:
    """A Job of 3 workers that runs with 1."""
    labels = {"kueue.x-k8s.io/queue-name": "q"} if in_queue else {}
    spec = {"completions": 3, "parallelism": 1, "suspend": False}
    return JobKind().slim({"metadata": {"name": "a", "uid": "1", "labels": labels}, "spec": spec})


def test_workers_that_the_queue_has_not_let_in_wait_in_it() -> None:
    first, *others = read_job(JobKind(), admitted(in_queue=True), [], {}, None).workers
    assert first.waiting is Waiting.STARTING
    assert {(one.waiting, one.reason) for one in others} == {
        (Waiting.QUEUED, "the queue has admitted 1 of 3 workers")
    }
    plain = read_job(JobKind(), admitted(in_queue=False), [], {}, None)
    assert {one.waiting for one in plain.workers} == {Waiting.STARTING}


def test_a_worker_whose_pod_was_there_does_not_wait_for_a_queue() -> None:
    found = read_job(JobKind(), admitted(in_queue=True), [], {2: "uid"}, None).workers[2]
    assert (found.phase, found.reason) == (WorkerPhase.LOST, "its pod was deleted")


# -- pods that are queued by themselves --------------------------------------------------------------------------------


def test_the_workers_of_an_elasticjob_are_a_group_and_its_master_is_none_of_it() -> None:
    (body,) = rendered("elasticjob", Workers(3), 3, queue="team", queue_priority="high")
    master, worker = (body["spec"]["replicaSpecs"][kind]["template"] for kind in ("dlrover-master", "worker"))
    told = {
        "kueue.x-k8s.io/queue-name": "team",
        "kueue.x-k8s.io/priority-class": "high",
        "kueue.x-k8s.io/pod-group-name": body["metadata"]["name"],
    }
    assert told.items() <= worker["metadata"]["labels"].items()
    assert worker["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    for metadata in (master["metadata"], body["metadata"]):
        assert not [key for part in metadata.values() for key in part if key.startswith("kueue.x-k8s.io")]
    # Pods that wait in a queue are no reason for the master to end the job.
    assert body["metadata"]["annotations"]["pending_fail_strategy"] == "0"
    (container,) = master["spec"]["containers"]
    assert container["command"][-2:] == ["--pending_fail_strategy", "0"]


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("auto_scale", {"auto_scale": True}),
        (
            "replicas",
            {
                "distribution_strategy": "ParameterServerStrategy",
                "replicas": {"ps": {"replicas": 1, "command": ["ps"]}},
            },
        ),
    ],
)
def test_a_group_is_of_workers_alone_and_of_one_size(path: str, options: dict[str, Any]) -> None:
    find_engine("elasticjob").check(run("elasticjob", Workers(2), **options))
    with pytest.raises(SpecError, match=rf"engine_options\.{path}.*beside queue"):
        find_engine("elasticjob").check(run("elasticjob", Workers(2), queue="team", **options))


def gated(**status: Any) -> dict[str, Any]:
    metadata = {
        "name": "p",
        "uid": "p",
        "creationTimestamp": "2026-11-21T00:00:00Z",
        "labels": {"elasticjob.dlrover/replica-type": "worker", "elasticjob.dlrover/rank-index": "0"},
    }
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    return {
        "metadata": metadata,
        "spec": {"schedulingGates": gates},
        "status": {"phase": "Pending", **status},
    }


@pytest.mark.parametrize(
    ("queue", "said"), [(None, "held by kueue.x-k8s.io/admission"), (NO_ROOM[2], NO_ROOM[2])]
)
def test_a_pod_that_is_held_by_a_gate_is_queued_with_the_queues_own_words(
    queue: str | None, said: str
) -> None:
    kind = ElasticJobKind()
    owner = {
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"workers": 1, "suspend": False},
        "status": {"phase": "Running", "failed": None},
    }
    (worker,) = read_job(kind, owner, [pod_status.slim(gated())], {}, None, queue).workers
    assert (worker.waiting, worker.reason) == (Waiting.QUEUED, said)


def test_a_pod_that_kueue_has_taken_back_was_preempted() -> None:
    """It says so in a condition of its own before it deletes it."""
    taken = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvicted", "message": TAKEN[2]}
    ended = {"exitCode": 143, "reason": "Error"}
    container = {"name": "main", "state": {"terminated": ended}}
    pod = gated(conditions=[taken], containerStatuses=[container])
    worker = pod_status.read_pod(pod_status.slim(pod), "main", "node-0")
    assert (worker.phase, worker.preempted, worker.reason) == (WorkerPhase.LOST, True, TAKEN[2])
