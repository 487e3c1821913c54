"""The example DAG for a cluster, as its users run it: a real Airflow, real pods, real S3, and a node that dies.

Airflow and the pods have only what docs/how-to/run-the-example-dag.md says: connections, variables, a Secret, and
an account with the documented rights.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS, SECRETS
from airflow_elastic.control.runs import Run
from airflow_elastic.core.state import Cause, FailureKind, RunState
from airflow_elastic.engines import find_engine
from airflow_elastic.engines.kube.engine import KubeEngine
from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.cluster.faults.test_node_faults import DLROVER_TYPE, apart
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import documented_rights
from tests.support.machine.patience import PATIENCE_SECONDS, until_async
from tests.support.runs.faults import Faults
from tests.support.s3 import S3Server, s3_server

ROOT = Path(__file__).parents[2]
DAG, TASK = "digits_kubernetes", "train"
EPOCHS, SAMPLES = 4, 1437

AWS_SECRET = "AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """A real S3 server that pods reach, too."""
    with s3_server() as server:
        if server.kind != "given":
            pytest.skip(
                "set ELASTIC_TEST_S3_ENDPOINT to an S3 server that this machine and pods reach to run this"
            )
        yield server


@pytest.fixture(
    params=[
        "pytorchjob",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("job", "trainjob", "elasticjob")),
    ]
)
async def engine(request: pytest.FixtureRequest, client: Client) -> KubeEngine:
    found = find_engine(request.param)
    assert isinstance(found, KubeEngine)
    if "form" in request.fixturenames:  # the kind has been installed just now
        await until_async(lambda: client.knows(found.kind.resource), "the kind")
    if not await client.knows(found.kind.resource):
        pytest.skip(f"install {found.kind.resource.needs} in the cluster to run this")
    return found


def rights_of(engine: KubeEngine) -> list[dict[str, Any]]:
    """What the documentation gives Airflow for it. TensorStack's has the rules above its own, for another kind."""
    if engine.name != "pytorchtrainingjob":
        return documented_rights(engine.name)
    first, *others = documented_rights("elasticjob")
    kind = engine.kind.resource
    return [{**first, "apiGroups": [kind.group], "resources": [kind.plural]}, *others]


@pytest.fixture
async def secrets(
    engine: KubeEngine,
    s3: S3Server,
    namespace: str,
    client: Client,
    account: Callable[..., Awaitable[kube.Account]],
) -> tuple[kube.Account, list[str]]:
    """The account that Airflow has in the cluster, and every word that nobody may read anywhere."""
    port = s3.address.rpartition(":")[2]
    data = {**s3.env, "AWS_ENDPOINT_URL": f"http://host.cluster.internal:{port}"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}, "stringData": data}
    await client.create(SECRETS, namespace, body)
    made = await account(*rights_of(engine))
    return made, [made.token, s3.env[AWS_SECRET]]


@pytest.fixture
def master(engine: KubeEngine, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What the options say of the job master, where the engine has one."""
    return {"master": request.getfixturevalue("job_master")} if engine.name == "elasticjob" else {}


@pytest.fixture
def airflow(
    engine: KubeEngine,
    s3: S3Server,
    secrets: tuple[kube.Account, list[str]],
    master: dict[str, Any],
    pod_options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Standalone]:
    """An Airflow that knows of S3 and of the cluster by its connections alone."""
    for name in ("KUBECONFIG", *s3.env):
        monkeypatch.delenv(name, raising=False)
    given = {name: value for name, value in pod_options.items() if name != "kubeconfig"}
    options = apart({**given, **master})
    container = {"name": engine.kind.container, "workingDir": str(ROOT / "dags")}
    options["pod_template"]["spec"]["containers"] = [container]
    options["env_from"] = [{"secretRef": {"name": "s3"}}]
    elastic = {
        "run_root": f"s3://{s3.bucket}/runs",
        "aws_conn_id": "storage",
        "kubernetes_conn_id": "cluster",
    }
    connections = {
        "elastic_default": {"conn_type": "elastic", "extra": elastic},
        "cluster": {"conn_type": "kubernetes", "extra": {"kube_config": secrets[0].access.content}},
        "storage": {
            "conn_type": "aws",
            "login": s3.env["AWS_ACCESS_KEY_ID"],
            "password": s3.env[AWS_SECRET],
            "extra": {"endpoint_url": s3.endpoint_url, "region_name": s3.env["AWS_DEFAULT_REGION"]},
        },
    }
    variables = {
        "AIRFLOW_VAR_DIGITS_HOME": f"s3://{s3.bucket}/digits",
        "AIRFLOW_VAR_DIGITS_ENGINE_OPTIONS": json.dumps(options),
    }
    running = Standalone(
        tmp_path / "airflow", ROOT / "dags", env=variables, connections=connections, progress=print
    )
    with running:
        yield running


@pytest.mark.siblings("example DAGs")
@pytest.mark.airflow
@pytest.mark.timeout(1200)
async def test_the_example_dag_loses_a_node_and_promotes_its_model(
    engine: KubeEngine,
    s3: S3Server,
    secrets: tuple[kube.Account, list[str]],
    airflow: Standalone,
    namespace: str,
    client: Client,
    faults: Faults,
) -> None:
    airflow.wait_for_dag(DAG)
    conf = {"engine": engine.name, "epochs": EPOCHS, "step_seconds": 0.05}
    run_id = airflow.trigger(DAG, conf)
    airflow.wait_task(DAG, run_id, TASK, "deferred")
    uri: str = airflow.xcom(DAG, run_id, TASK, "run_uri")
    run = Run(s3.store(uri.removeprefix(f"s3://{s3.bucket}/")))

    def saved() -> RunState | None:
        state = run.state
        return state if state.checkpoint else None

    before = poll("the first checkpoint", saved, timeout=PATIENCE_SECONDS, hint=lambda: str(run.state))
    assert before.checkpoint is not None
    pods = await ours(client, namespace)
    node = max(pods, key=lambda pod: str(pod["metadata"]["name"]))["spec"]["nodeName"]
    faults.node(node, "power-off")

    airflow.wait_run(DAG, run_id, timeout=PATIENCE_SECONDS)

    # What it cost: one attempt, and neither a try of the task nor a sample.
    state = run.state
    story = [(attempt.cause, attempt.failure) for attempt in state.attempts]
    assert len(story) == 2, story
    first, second = state.attempts
    assert first.failure is not None
    assert (first.cause, first.failure.kind) == (Cause.FAILURE, FailureKind.WORKER_LOST)
    assert second.from_step >= before.checkpoint.step
    result = airflow.xcom(DAG, run_id, TASK)
    assert (result["run_uri"], result["attempts"]) == (uri, 2)
    assert airflow.task(DAG, run_id, TASK)["try_number"] == 1
    page = airflow.rest(
        "GET", f"/elastic/runs/{DAG}/{run_id}/{TASK}", params={"map_index": -1, "format": "json"}
    )
    assert (page["state"], page["samples"]["seen"]) == ("succeeded", EPOCHS * SAMPLES)

    # What came of it.
    made = airflow.xcom(DAG, run_id, "promote")
    assert made["metrics"]["accuracy"] > 0.8  # a guess is right one time in ten
    assert (made["number"], made["run"], made["step"]) == (1, uri, result["step"])
    asked = {"source_dag_id": DAG, "source_run_id": run_id}
    events = airflow.rest("GET", "assets/events", params=asked)["asset_events"]
    assert [event["extra"]["id"] for event in events] == [made["id"]]

    # What is left: the jobs that succeeded, for a day. The dead node's pods are not waited for.
    evaluation = Run(s3.store(airflow.xcom(DAG, run_id, "evaluate")["run_uri"].partition(f"{s3.bucket}/")[2]))
    succeeded = {second.job, evaluation.state.attempt.job}
    jobs, _ = await client.list(engine.kind.resource, namespace)
    assert {job["metadata"]["name"] for job in jobs} == succeeded
    left = await ours(client, namespace)
    assert {pod["metadata"]["labels"][engine.kind.pod_label] for pod in left} <= succeeded
    assert {pod["status"]["phase"] for pod in left} <= {"Succeeded"}

    # And no secret anywhere: not in the run, nor in Airflow's database and logs, nor in the cluster's objects.
    store = s3.store("")
    written = {entry.key: store.get(entry.key) or b"" for entry in store.list()}
    written |= {str(path): path.read_bytes() for path in airflow.home.rglob("*") if path.is_file()}
    written |= {"the cluster": json.dumps([*jobs, *left, *pods]).encode()}

    def where(word: str) -> list[str]:
        return [name for name, content in written.items() if word.encode() in content]

    assert {"the cluster", str(airflow.home / "airflow.db")} <= {*where(uri)}
    assert [where(secret) for secret in secrets[1]] == [[], []]


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "engine"), [("reference", "pytorchtrainingjob"), ("guide", "pytorchtrainingjob")], indirect=True
)
async def test_what_the_example_dag_asks_of_tensorstack_is_accepted_and_taken_back(
    form: str,
    engine: KubeEngine,
    s3: S3Server,
    airflow: Standalone,
    namespace: str,
    client: Client,
) -> None:
    """Nobody makes pods of it here, as its operator is closed; so the run waits, until it is stopped."""
    airflow.wait_for_dag(DAG)
    run_id = airflow.trigger(DAG, {"engine": engine.name, "epochs": EPOCHS, "step_seconds": 0.05})
    airflow.wait_task(DAG, run_id, TASK, "deferred")
    uri: str = airflow.xcom(DAG, run_id, TASK, "run_uri")
    run = Run(s3.store(uri.removeprefix(f"s3://{s3.bucket}/")))
    poll(
        "the submission",
        lambda: run.state.attempt.submitted_at,
        timeout=PATIENCE_SECONDS,
        hint=lambda: str(run.state),
    )
    (made,) = (await client.list(engine.kind.resource, namespace))[0]
    assert made["metadata"]["name"] == run.state.attempt.job
    assert made["spec"].get("elastic", {}).get("minReplicas") == (1 if form == "reference" else None)
    run.ask_stop(by="test")
    poll("the end", lambda: run.state.outcome, timeout=PATIENCE_SECONDS, hint=lambda: str(run.state))
    assert run.state.outcome == "stopped"
    assert not (await client.list(engine.kind.resource, namespace))[0]


async def ours(client: Client, namespace: str) -> list[dict[str, Any]]:
    """The pods that there are of workers."""
    pods, _ = await client.list(PODS, namespace, labels=f"{DLROVER_TYPE} notin (dlrover-master)")
    return pods
