"""What is read of pods: the container that trains among others, and the cluster's words about a pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube.resources import EVENTS, JOBS, PODS
from airflow_elastic.core.health.classify import classify
from airflow_elastic.core.state import FailureKind
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kind import read_job
from airflow_elastic.engines.kube.kinds.job import INDEX_ANNOTATION, JobEngine, JobKind
from airflow_elastic.engines.kube.watch import api_errors, pod_status
from airflow_elastic.engines.kube.watch.ends import Ends
from airflow_elastic.engines.kube.watch.events import newest_of, with_event_messages
from airflow_elastic.engines.kube.watch.sidecars import held_by_sidecars
from airflow_elastic.spec.run import RunSpec, Workers
from airflow_elastic.spec.status import JobStatus, Waiting, WorkerPhase, WorkerStatus
from tests.support.builders import spec
from tests.support.kubernetes.kube_objects import Objects, kube_objects
from tests.support.kubernetes.kube_pods import condition, ended, pod, running, waiting, worker

ISTIO = {"initContainers": [{"name": "istio-proxy", "image": "istio:1", "restartPolicy": "Always"}]}


def failure(found: WorkerStatus) -> FailureKind:
    told = classify(JobStatus((found,)))
    assert told is not None
    return told.kind


# -- the container that trains, whatever is beside it ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "phase"),
    [
        ([running("proxy"), running("trainer")], WorkerPhase.RUNNING),
        ([ended("proxy", 1), running("trainer")], WorkerPhase.RUNNING),
        ([ended("proxy", 137, "OOMKilled"), running("trainer")], WorkerPhase.RUNNING),
        ([waiting("proxy", "ImagePullBackOff", "no such image"), running("trainer")], WorkerPhase.RUNNING),
        ([running("proxy"), ended("trainer", 0)], WorkerPhase.SUCCEEDED),
        ([ended("proxy", 2), ended("trainer", 0)], WorkerPhase.SUCCEEDED),
        ([running("proxy"), ended("trainer", 3)], WorkerPhase.FAILED),
        ([ended("proxy", 0), ended("trainer", 3)], WorkerPhase.FAILED),
    ],
)
def test_a_worker_is_as_its_training_container_is(statuses: list[dict[str, Any]], phase: WorkerPhase) -> None:
    assert worker("Running", containerStatuses=statuses).phase is phase
    if not any("running" in one["state"] or "waiting" in one["state"] for one in statuses):
        assert worker("Failed", containerStatuses=statuses).phase is phase
    assert worker("Running", containerStatuses=statuses[::-1]).phase is phase


def told(code: int, *errors: dict[str, Any], limit: str | None = "256Mi") -> str:
    """The reason that is told of a container that was killed for memory, whose agent has left these errors."""
    result = {"outcome": "failed", "at": 1.0, "errors": list(errors)}
    said = {"message": json.dumps(result)} if errors else {}
    limits = {"resources": {"limits": {"memory": limit}}} if limit else {}
    spec = {"containers": [{"name": "proxy"}, {"name": "trainer", "image": "i", **limits}]}
    killed = ended("trainer", code, "OOMKilled", **said)
    found = classify(JobStatus((worker("Failed", spec=spec, containerStatuses=[killed]),)))
    assert found is not None
    assert found.kind is FailureKind.OUT_OF_MEMORY
    return found.reason


def test_a_kill_for_memory_is_told_with_its_limit() -> None:
    ran_out = "was killed by the kernel because memory ran out"
    limit = "(container trainer OOMKilled, limit 256Mi)"
    assert told(137) == f"node-0 {ran_out} {limit}"
    assert told(137, limit=None).endswith("(container trainer OOMKilled, without a limit of its own)")
    assert told(1, {"rank": 3, "signal": 9, "at": 1.0, "out_of_memory": True}) == (
        f"rank 3 on node-0 {ran_out} {limit}"
    )
    assert told(1, {"rank": 3, "exit_code": 1, "at": 1.0}).endswith(f"{ran_out} {limit}")


def test_a_native_sidecar_that_is_ended_with_its_pod_is_no_failed_init_container() -> None:
    found = worker(
        "Failed",
        spec=ISTIO,
        initContainerStatuses=[ended("istio-proxy", 137)],
        reason="NodeShutdown",
        message="Pod was rejected as the node is shutting down.",
    )
    assert (found.phase, found.preempted, found.errors) == (WorkerPhase.LOST, True, ())
    assert found.reason == "NodeShutdown: Pod was rejected as the node is shutting down."


@pytest.mark.parametrize(
    ("grace", "ended_with", "phase"),
    [
        (0, None, WorkerPhase.LOST),
        (30, None, WorkerPhase.RUNNING),
        (0, 0, WorkerPhase.SUCCEEDED),
        (0, 3, WorkerPhase.FAILED),
    ],
)
def test_a_pod_that_is_deleted_without_grace_is_lost_while_a_finalizer_keeps_it(
    grace: int, ended_with: int | None, phase: WorkerPhase
) -> None:
    statuses = [running("trainer") if ended_with is None else ended("trainer", ended_with)]
    found = pod("Running", containerStatuses=statuses)
    found["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
    read = pod_status.read_pod(pod_status.slim(found), "trainer", "node-0")
    assert read.phase is phase


def test_a_pod_that_a_suspended_job_takes_back_before_it_starts_was_not_lost() -> None:
    """It is deleted without grace, and a finalizer keeps it for a moment."""
    found = pod("Pending", node=None)
    found["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0}
    found["metadata"]["labels"] = {INDEX_ANNOTATION: "0"}
    spec = {"completions": 1, "parallelism": 1, "suspend": True}
    owner = JobKind().slim({"metadata": {"name": "a", "uid": "1"}, "spec": spec})
    (one,) = read_job(JobKind(), owner, [pod_status.slim(found)], {}).workers
    assert (one.phase, one.waiting) == (WorkerPhase.PENDING, Waiting.QUEUED)


def test_ephemeral_containers_are_nobody() -> None:
    found = worker(
        "Running", containerStatuses=[running("trainer")], ephemeralContainerStatuses=[ended("debugger", 1)]
    )
    assert found.phase is WorkerPhase.RUNNING


def test_a_failed_init_container_says_which_and_how() -> None:
    statuses = {
        "initContainerStatuses": [
            ended("ready", 0),
            ended("fetch", 7, message="GET s3://data\nNoSuchBucket: data"),
        ],
        "containerStatuses": [waiting("trainer", "PodInitializing")],
    }
    found = worker("Failed", **statuses)
    assert (found.phase, found.errors[0].exit_code) == (WorkerPhase.FAILED, 7)
    assert found.errors[0].error == found.reason == "init container fetch failed: NoSuchBucket: data"
    assert failure(found) is FailureKind.CODE_ERROR
    assert pod_status.failed_without_report(pod_status.slim(pod("Failed", **statuses)), "trainer") == [
        "fetch"
    ]
    assert worker("Pending", **statuses).phase is WorkerPhase.PENDING, "its phase tells a second later"


def test_of_containers_that_failed_only_the_training_ones_output_is_evidence() -> None:
    both = [ended("proxy", 1), ended("trainer", 1)]
    assert pod_status.failed_without_report(
        pod_status.slim(pod("Failed", containerStatuses=both)), "trainer"
    ) == ["trainer"]
    alone = [ended("proxy", 1), ended("trainer", 0)]
    assert (
        pod_status.failed_without_report(pod_status.slim(pod("Failed", containerStatuses=alone)), "trainer")
        == []
    )


# -- what a pod waits for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "main", "state", "reason"),
    [
        (
            [waiting("fetch", "ImagePullBackOff", 'Back-off pulling image "fetch:1": not found')],
            waiting("trainer", "PodInitializing"),
            Waiting.PULLING,
            'init container fetch: ImagePullBackOff: Back-off pulling image "fetch:1": not found',
        ),
        (
            [ended("first", 0), running("fetch", ready=False)],
            waiting("trainer", "PodInitializing"),
            Waiting.STARTING,
            "init container fetch is running",
        ),
        (
            [waiting("fetch", "CreateContainerConfigError", 'secret "s3" not found')],
            waiting("trainer", "PodInitializing"),
            Waiting.STARTING,
            'init container fetch: CreateContainerConfigError: secret "s3" not found',
        ),
        (
            [{**waiting("fetch", "CrashLoopBackOff", "back-off 10s"), "lastState": ended("", 3)["state"]}],
            waiting("trainer", "PodInitializing"),
            Waiting.STARTING,
            "init container fetch: CrashLoopBackOff: back-off 10s (exit code 3)",
        ),
        (
            [ended("fetch", 0)],
            waiting("trainer", "CreateContainerConfigError", 'configmap "c" not found'),
            Waiting.STARTING,
            'CreateContainerConfigError: configmap "c" not found',
        ),
        ([], waiting("trainer", "ContainerCreating"), Waiting.STARTING, None),
        (
            [waiting("fetch", "PodInitializing"), waiting("next", "PodInitializing")],
            waiting("trainer", "PodInitializing"),
            Waiting.STARTING,
            None,
        ),
    ],
)
def test_what_holds_up_a_pod_on_its_node_is_told(
    init: list[dict[str, Any]], main: dict[str, Any], state: Waiting, reason: str | None
) -> None:
    found = worker("Pending", initContainerStatuses=init, containerStatuses=[main])
    assert (found.phase, found.waiting, found.reason) == (WorkerPhase.PENDING, state, reason)


def test_a_native_sidecar_is_waited_for_until_it_has_started() -> None:
    def found(status: dict[str, Any]) -> WorkerStatus:
        main = [waiting("trainer", "PodInitializing")]
        return worker("Pending", spec=ISTIO, initContainerStatuses=[status], containerStatuses=main)

    assert found(running("istio-proxy", started=False)).reason == (
        "sidecar istio-proxy is running, and has not started up yet"
    )
    assert found(running("istio-proxy")).reason is None
    pulling = found(waiting("istio-proxy", "ErrImagePull", "denied"))
    assert (pulling.waiting, pulling.reason) == (
        Waiting.PULLING,
        "sidecar istio-proxy: ErrImagePull: denied",
    )


def test_a_container_that_the_trainer_comes_after_is_told_where_the_trainer_says_nothing() -> None:
    proxy = waiting("proxy", "CreateContainerConfigError", 'secret "ca" not found')
    found = worker("Pending", containerStatuses=[proxy, waiting("trainer", "ContainerCreating")])
    assert found.reason == 'container proxy: CreateContainerConfigError: secret "ca" not found'


def test_of_several_workers_the_first_that_knows_why_is_heard() -> None:
    silent = WorkerStatus("node-0", WorkerPhase.PENDING, waiting=Waiting.STARTING)
    knows = WorkerStatus("node-1", WorkerPhase.PENDING, waiting=Waiting.STARTING, reason="exceeded quota")
    wait = JobStatus((silent, knows)).wait
    assert wait is not None
    assert (wait.workers, wait.reason) == (2, "exceeded quota")


# -- why the platform ended a pod --------------------------------------------------------------------------------------

LOW = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. "
OUT = "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 5000, capacity: 8000"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('Usage of EmptyDir volume "dshm" exceeds the limit "1Gi". ', FailureKind.OVER_LIMIT),
        ('Container trainer exceeded its local ephemeral storage limit "2Gi". ', FailureKind.OVER_LIMIT),
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. ",
            FailureKind.OVER_LIMIT,
        ),
        (LOW, FailureKind.PREEMPTED),
    ],
)
@pytest.mark.parametrize(
    "statuses", [[], [ended("trainer", 137)], [ended("trainer", 0, "ContainerStatusUnknown")]]
)
def test_an_eviction_is_told_in_the_nodes_words_and_a_limit_of_its_own_is_the_pods_fault(
    message: str, kind: FailureKind, statuses: list[dict[str, Any]]
) -> None:
    found = worker("Failed", reason="Evicted", message=message, containerStatuses=statuses)
    assert (found.phase, found.preempted) == (WorkerPhase.LOST, kind is FailureKind.PREEMPTED)
    assert found.reason == f"Evicted: {message.strip()}"
    assert failure(found) is kind


def test_agents_words_of_an_evicted_worker_are_kept() -> None:
    said = json.dumps({"outcome": "stopped", "at": 1.0, "reason": "told to end"})
    found = worker(
        "Failed",
        reason="Evicted",
        message='Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". ',
        containerStatuses=[ended("trainer", 143, message=said)],
    )
    assert failure(found) is FailureKind.OVER_LIMIT
    done = json.dumps({"outcome": "succeeded", "at": 1.0})
    found = worker("Failed", reason="Evicted", containerStatuses=[ended("trainer", 0, message=done)])
    assert found.phase is WorkerPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("reason", "message", "why", "told"),
    [
        (
            None,
            None,
            condition("DisruptionTarget", "True", "PreemptionByScheduler", "default-scheduler: preempting"),
            "preempted by a pod of higher priority: default-scheduler: preempting",
        ),
        (
            "Evicted",
            LOW,
            condition("DisruptionTarget", "True", "TerminationByKubelet", LOW),
            f"ended by its node, which is short of something or shuts down: Evicted: {LOW.strip()}",
        ),
        (
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
            None,
            "Terminated: Pod was terminated in response to imminent node shutdown.",
        ),
        ("OutOfcpu", OUT, None, f"OutOfcpu: {OUT}"),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", None, None),
        ("UnexpectedAdmissionError", "Pod was rejected: Allocate failed", None, None),
        ("Preempting", "Preempted in order to admit critical pod", None, None),
    ],
)
def test_what_the_platform_takes_away_costs_nothing_and_is_told(
    reason: str | None, message: str | None, why: dict[str, Any] | None, told: str | None
) -> None:
    own = {name: value for name, value in (("reason", reason), ("message", message)) if value}
    found = worker("Failed", conditions=[why] if why else [], **own)
    assert (found.phase, found.preempted) == (WorkerPhase.LOST, True)
    assert found.reason == (told or f"{reason}: {message}")
    assert failure(found) is FailureKind.PREEMPTED


def test_a_reason_of_the_pods_own_is_told_whatever_its_containers_ended_with() -> None:
    late = "Pod was active on the node longer than the specified deadline"
    for statuses in ([], [ended("trainer", 137)]):
        found = worker("Failed", reason="DeadlineExceeded", message=late, containerStatuses=statuses)
        assert (found.phase, found.preempted) == (WorkerPhase.LOST, False)
        assert found.reason == f"DeadlineExceeded: {late}"


def test_how_a_worker_ended_is_known_when_its_pod_has_gone() -> None:
    ends, gone = Ends(), WorkerStatus("node-0", WorkerPhase.LOST, reason="its pod was deleted")

    def then(found: dict[str, Any]) -> WorkerStatus:
        slim = pod_status.slim(found)
        seen = ends(JobStatus((pod_status.read_pod(slim, "trainer", "node-0"),)), {"node-0": slim})
        assert seen.workers[0].phase is not WorkerPhase.LOST
        (later,) = ends(JobStatus((gone,)), {}).workers
        return later

    done = pod("Running", containerStatuses=[ended("trainer", 0), running("proxy")])
    assert then(done).phase is WorkerPhase.SUCCEEDED
    why = condition("DisruptionTarget", "True", "PreemptionByScheduler", "default-scheduler: preempting")
    taken = then(pod("Running", conditions=[why], containerStatuses=[running("trainer")]))
    assert (taken.phase, taken.preempted) == (WorkerPhase.LOST, True)
    assert then(pod("Running", containerStatuses=[running("trainer")])) == gone


def test_a_node_that_is_gone_is_no_preemption() -> None:
    gone = condition("DisruptionTarget", "True", "DeletionByTaintManager", "Taint manager: deleting")
    found = worker("Running", conditions=[gone], containerStatuses=[running("trainer")])
    assert (found.phase, found.preempted) == (WorkerPhase.LOST, False)
    assert found.reason == "its node n1 is gone (Taint manager: deleting)"


# -- what events alone tell --------------------------------------------------------------------------------------------


def event(reason: str, message: str, second: int, kind: str = "Normal") -> dict[str, Any]:
    return {
        "metadata": {"name": f"fit-0.{reason}", "creationTimestamp": "2026-01-01T10:00:00Z"},
        "involvedObject": {"kind": "Pod", "name": "fit-0", "uid": "u"},
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T10:00:{second:02}Z",
    }


SCHEDULED = [
    event("FailedScheduling", "0/3 nodes are available", 1, "Warning"),
    event("Scheduled", "Successfully assigned", 2),
]
MOUNT = event("FailedMount", 'MountVolume.SetUp failed for volume "s" : secret "s" not found', 9, "Warning")
SANDBOX = event("FailedCreatePodSandBox", "Failed to create pod sandbox: plugin", 5, "Warning")


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], None),
        (SCHEDULED, None),
        (
            [*SCHEDULED, MOUNT],
            (
                Waiting.STARTING,
                'FailedMount: MountVolume.SetUp failed for volume "s" : secret "s" not found',
            ),
        ),
        ([SANDBOX, event("Pulling", 'Pulling image "i:1"', 6)], (Waiting.PULLING, 'Pulling image "i:1"')),
        ([event("Pulling", 'Pulling image "i:1"', 6), event("Pulled", "Successfully pulled", 7)], None),
        (
            [
                event("Pulling", "Pulling", 6),
                event("Failed", 'Failed to pull image "i": denied', 6, "Warning"),
            ],
            (Waiting.PULLING, 'Failed: Failed to pull image "i": denied'),
        ),
    ],
)
def test_the_newest_event_of_a_pod_that_has_its_node_is_told(
    events: list[dict[str, Any]], told: tuple[Waiting, str] | None
) -> None:
    assert newest_of(events) == told


def test_events_speak_for_pods_that_say_nothing() -> None:
    quiet = worker("Pending", containerStatuses=[waiting("trainer", "ContainerCreating")])
    told = {"node-0": (Waiting.STARTING, "FailedMount: no such volume")}
    (found,) = with_event_messages(JobStatus((quiet,)), told).workers
    assert (found.waiting, found.reason) == told["node-0"]
    says = worker("Pending", containerStatuses=[waiting("trainer", "CreateContainerError", "no such user")])
    assert with_event_messages(JobStatus((says,)), told).workers == (says,)


def test_nodes_that_only_say_that_an_image_is_tried_again_are_helped_out() -> None:
    old = waiting("trainer", "ImagePullBackOff", 'Back-off pulling image "i:1"')
    told = {"node-0": (Waiting.PULLING, 'Failed: Failed to pull image "i:1": denied')}
    (found,) = with_event_messages(JobStatus((worker("Pending", containerStatuses=[old]),)), told).workers
    assert found.reason == (
        'ImagePullBackOff: Back-off pulling image "i:1": Failed: Failed to pull image "i:1": denied'
    )


# -- what a sidecar keeps ----------------------------------------------------------------------------------------------


def test_an_ordinary_sidecar_keeps_its_pod_and_no_other_does() -> None:
    def held(phase: str, *statuses: dict[str, Any], **fields: Any) -> bool:
        found = pod(phase, containerStatuses=list(statuses), **fields)
        return bool(held_by_sidecars([pod_status.slim(found)], "trainer"))

    done = ended("trainer", 0)
    assert held("Running", done, running("proxy"))
    assert held("Pending", done, waiting("proxy", "ImagePullBackOff"))
    assert not held("Running", done), "its phase tells a second later"
    assert not held("Running", done, ended("proxy", 1))
    assert not held("Running", done, spec=ISTIO, initContainerStatuses=[running("istio-proxy")])
    assert not held("Running", done, ephemeralContainerStatuses=[running("debugger")])
    assert not held("Running", running("trainer"), running("proxy"))
    assert not held("Succeeded", done, ended("proxy", 0))
    again = {"containers": [{"name": "trainer"}, {"name": "proxy", "restartPolicy": "Always"}]}
    assert held("Running", done, ended("proxy", 0), spec=again)


# -- the engine, on a server that keeps objects ------------------------------------------------------------------------


def run(folder: Path, **options: Any) -> RunSpec:
    volumes = [{"mount_path": str(folder), "claim": "runs"}]
    given = {"image": "trainer:1", "volumes": volumes, **options}
    return spec(engine="job", workers=Workers(2), engine_options=given)


async def with_pods(server: Objects, job: Job, **status: Any) -> None:
    """What the Job's controller makes, and their nodes write."""
    template = server.of(JOBS)[job.name]["spec"]["template"]
    for index in range(job.workers):
        labels = {
            **template["metadata"]["labels"],
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        metadata = {**template["metadata"], "name": f"{job.name}-{index}-x", "labels": labels}
        body = {"metadata": metadata, "spec": {**template["spec"], "nodeName": f"n{index}"}, "status": status}
        await server.put(PODS, body)


async def first(engine: JobEngine, job: Job) -> list[WorkerPhase]:
    watching = engine.watch(job)
    async for status in watching:
        await watching.aclose()  # type: ignore[attr-defined]
        return [one.phase for one in status.workers]
    raise AssertionError("it has seen nothing")


async def test_pods_are_found_whatever_the_users_labels_say(tmp_path: Path) -> None:
    helm = {"labels": {"app.kubernetes.io/managed-by": "Helm"}}
    async with kube_objects() as server:
        engine = JobEngine(access=server.access)
        job = Job(str(tmp_path / "run"), run(tmp_path, pod_template={"metadata": helm}), 1, 2)
        await engine.submit(job)
        await with_pods(server, job, phase="Running", containerStatuses=[running("trainer")])
        assert await first(engine, job) == [WorkerPhase.RUNNING] * 2
        assert all(
            one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
            for one in server.of(PODS).values()
        )


async def test_events_of_pods_that_say_nothing_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_errors, "LOOK_SECONDS", 0.01)
    async with kube_objects() as server:
        engine = JobEngine(access=server.access)
        job = Job(str(tmp_path / "run"), run(tmp_path), 1, 2)
        await engine.submit(job)
        quiet = [waiting("trainer", "ContainerCreating")]
        await with_pods(server, job, phase="Pending", containerStatuses=quiet)
        second = server.of(PODS)[f"{job.name}-1-x"]["metadata"]
        about = {"kind": "Pod", "name": second["name"], "uid": second["uid"]}
        await server.put(EVENTS, {**MOUNT, "involvedObject": about})
        async for status in engine.watch(job):
            if status.wait is not None and status.wait.reason:
                assert (status.wait.workers, status.wait.reason) == (
                    2,
                    f"FailedMount: {MOUNT['message']}",
                )
                break


@pytest.mark.parametrize("beside", [[], [running("proxy")]])
async def test_a_job_that_has_succeeded_stays_unless_a_sidecar_runs_on(
    tmp_path: Path, beside: list[dict[str, Any]]
) -> None:
    async with kube_objects() as server:
        engine = JobEngine(access=server.access)
        job = Job(str(tmp_path / "run"), run(tmp_path), 1, 2)
        await engine.submit(job)
        await with_pods(server, job, phase="Running", containerStatuses=[ended("trainer", 0), *beside])
        assert await first(engine, job) == [WorkerPhase.SUCCEEDED] * 2
        await engine.delete(job, 1.0)
        await engine.close(job)
        assert (len(server.of(JOBS)), len(server.of(PODS))) == ((0, 0) if beside else (1, 2))
