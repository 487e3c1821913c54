"""A TensorBoard beside the workers: where it is, what it reads, and what is refused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.core.event_sentences import board_command
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.engines.kube.options import TensorBoard
from airflow_elastic.engines.kube.render.names import JOB_LABEL
from airflow_elastic.engines.kube.render.tensorboard import CONTAINER
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.run import RunSpec, SecretRef, Workers
from tests.support.machine.patience import PATIENCE_SECONDS

BESIDE = ("job", "pytorchjob", "trainjob", "elasticjob")


def run(engine: str = "job", *, writes: bool = True, board: Any = None, **options: Any) -> RunSpec:
    given = {"image": "trainer:1", "tensorboard": {} if board is None else board, **options}
    return RunSpec(
        command=("/app/train.py",),
        engine=engine,
        engine_options=given,
        workers=Workers(2),
        tensorboard=writes,
        env={"AWS_ENDPOINT_URL": "http://s3"},
        secrets=(SecretRef("AWS_SECRET_ACCESS_KEY", "kubernetes", "s3/key"),),
    )


def pods(spec: RunSpec, uri: str = "s3://bucket/run") -> list[dict[str, Any]]:
    """The specs of all pod templates in the objects of a job."""
    engine = find_engine(spec.engine)
    engine.check(spec)
    found: list[dict[str, Any]] = []
    todo: list[Any] = [engine.render(Job(uri, spec, 1, 2))]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if "containers" in one:
                found.append(one)
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return found


def boards(spec: RunSpec, uri: str = "s3://bucket/run") -> list[dict[str, Any]]:
    return [
        one for pod in pods(spec, uri) for one in pod.get("initContainers", ()) if one["name"] == CONTAINER
    ]


@pytest.mark.parametrize("engine", BESIDE)
def test_it_is_a_native_sidecar_with_the_workers_own_credentials(engine: str) -> None:
    board, *others = boards(run(engine))
    assert all(one == board for one in others)
    assert board["restartPolicy"] == "Always"
    assert board["image"] == "trainer:1"
    assert board["command"][-4:] == ["--logdir", "s3://bucket/run/tensorboard", "--port", "6006"]
    assert "--bind_all" not in board["command"], "nobody but the pod itself reaches it"
    names = {one["name"] for one in board["env"]}
    assert names >= {"AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY", "AIRFLOW_ELASTIC_INDEX"}
    assert board["resources"] == {"requests": {"cpu": "10m", "memory": "256Mi"}}
    assert "volumeMounts" not in board


@pytest.mark.parametrize("engine", BESIDE)
def test_without_the_option_there_is_none(engine: str) -> None:
    spec = RunSpec(("t.py",), engine=engine, engine_options={"image": "i"}, tensorboard=True)
    assert boards(spec) == []


def test_it_comes_after_the_containers_of_the_user_who_may_change_it() -> None:
    patch = {"spec": {"initContainers": [{"name": CONTAINER, "securityContext": {"runAsUser": 7}}]}}
    (pod,) = pods(run(init_containers=[{"name": "mine"}], pod_template=patch))
    assert [one["name"] for one in pod["initContainers"]] == ["mine", CONTAINER]
    assert pod["initContainers"][1]["securityContext"] == {"runAsUser": 7}


def test_its_image_port_and_resources_can_be_chosen() -> None:
    (board,) = boards(run(board={"image": "tb:2", "port": 7007, "resources": {"memory": "1Gi"}}))
    assert board["image"] == "tb:2"
    assert board["command"][4:] == [
        "tensorboard",
        "--logdir",
        "s3://bucket/run/tensorboard",
        "--port",
        "7007",
    ]
    assert board["resources"] == {"requests": {"memory": "1Gi"}}


def test_only_the_pods_that_may_hold_worker_0_have_it() -> None:
    spec = run("pytorchjob", master=True)
    have = [any(one["name"] == CONTAINER for one in pod.get("initContainers", ())) for pod in pods(spec)]
    assert sorted(have) == [False, True]


@pytest.mark.parametrize(("index", "expected"), [("0", "it starts"), ("1", "")])
def test_it_starts_where_worker_0_is_and_sleeps_elsewhere_until_it_is_ended(
    index: str, expected: str, tmp_path: Path
) -> None:
    command = [*boards(run())[0]["command"][:4], "echo", "it starts"]
    env = {**os.environ, "AIRFLOW_ELASTIC_INDEX": index}
    out = tmp_path / "out"  # no pipe: the `sleep` would hold it, which ends with its container
    with (
        out.open("w") as file,
        subprocess.Popen(command, env=env, stdout=file, start_new_session=True) as process,
    ):
        if not expected:
            process.terminate()
        assert process.wait(timeout=PATIENCE_SECONDS) in (0, -signal.SIGTERM)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert out.read_text().strip() == expected


VOLUMES = [
    {"mount_path": "/mnt", "host_path": "/data"},
    {"mount_path": "/mnt/runs", "claim": "runs", "sub_path": "team"},
]


def test_a_folder_is_mounted_from_the_volume_that_holds_it() -> None:
    (board,) = boards(run(volumes=VOLUMES), "/mnt/runs/mnist")
    assert board["volumeMounts"] == [
        {
            "name": "airflow-elastic-volume-1",
            "mountPath": "/mnt/runs",
            "readOnly": True,
            "subPath": "team",
        }
    ]


def problem(spec: RunSpec, uri: str) -> str | None:
    engine = find_engine(spec.engine)
    assert isinstance(engine, KubeEngine)
    return engine.storage_problem(Job(uri, spec, 1, 2))


def test_a_folder_that_only_workers_see_is_refused() -> None:
    mounted = {"name": "trainer", "volumeMounts": [{"name": "v", "mountPath": "/mnt"}]}
    volume = {"name": "v", "hostPath": {"path": "/mnt"}}
    spec = run(pod_template={"spec": {"containers": [mounted], "volumes": [volume]}})
    assert "mount it with engine_options.volumes" in (problem(spec, "/mnt/run") or "")
    assert problem(run(volumes=VOLUMES), "/mnt/run") is None
    assert problem(run(), "s3://bucket/run") is None


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"writes": False}, "engine_options.tensorboard"),
        ({"board": {"port": 80}}, "engine_options.tensorboard.port"),
        ({"board": {"resources": {"memory": "much"}}}, "engine_options.tensorboard.resources.memory"),
        ({"board": {"log_filesets": []}}, "engine_options.tensorboard.log_filesets"),
        ({"engine": "trainjob", "runtime": {"name": "theirs"}}, "engine_options.tensorboard"),
    ],
)
def test_refused_by_its_path(changes: dict[str, Any], path: str) -> None:
    spec = run(**changes)
    with pytest.raises(SpecError) as refused:
        find_engine(spec.engine).check(spec)
    assert path in [one.path for one in refused.value.problems]


# -- TensorStack -----------------------------------------------------------------------------------------------------


def board_of_tensorstack(spec: RunSpec, uri: str) -> dict[str, Any]:
    engine = find_engine("pytorchtrainingjob")
    engine.check(spec)
    found: dict[str, Any] = engine.render(Job(uri, spec, 1, 2))["items"][0]["spec"]["tensorboardSpec"]
    return found


def test_tensorstack_shows_the_files_of_a_run_in_a_claim() -> None:
    spec = run("pytorchtrainingjob", volumes=VOLUMES)
    told = {"image": "trainer:1", "trainingLogFilesets": ["t9k://pvc/runs/team/mnist/tensorboard"]}
    assert board_of_tensorstack(spec, "/mnt/runs/mnist") == told
    assert boards(spec, "/mnt/runs/mnist") == [], "its operator makes a pod of its own"
    assert problem(spec, "/mnt/runs/mnist") is None
    named = run("pytorchtrainingjob", board={"image": "tb:1", "log_filesets": ["t9k://pvc/x"]}, writes=False)
    assert board_of_tensorstack(named, "s3://bucket/run") == {
        "image": "tb:1",
        "trainingLogFilesets": ["t9k://pvc/x"],
    }
    assert problem(named, "s3://bucket/run") is None


@pytest.mark.parametrize("uri", ["s3://bucket/run", "/mnt/elsewhere"])
def test_tensorstack_cannot_show_what_no_claim_holds(uri: str) -> None:
    told = problem(run("pytorchtrainingjob", volumes=VOLUMES), uri)
    assert told is not None
    assert f"and none holds {uri}: mount one with engine_options.volumes" in told


def test_tensorstack_must_know_what_to_show() -> None:
    with pytest.raises(SpecError, match="log_filesets"):
        find_engine("pytorchtrainingjob").check(run("pytorchtrainingjob", writes=False))


# -- how to open it ----------------------------------------------------------------------------------------------------


def test_the_command_that_opens_it_finds_the_pod_by_the_jobs_label() -> None:
    spec = run(namespace="team", board={"port": 7007})
    assert board_command(spec, "mnist-a1") == (
        f"kubectl -n team port-forward $(kubectl -n team get pods -l {JOB_LABEL}=mnist-a1 -o name | head -n 1) 7007"
    )
    assert f" {TensorBoard().port}" in (board_command(run(), "j") or "")
    assert board_command(run("pytorchtrainingjob"), "j") is None
    assert board_command(RunSpec(("t.py",)), "j") is None
