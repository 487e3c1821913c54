"""A real API server takes PyTorchTrainingJobs as we render them, in the form that it has. The operator is closed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.engines.api import Job
from airflow_elastic.engines.kube.kinds.tensorstack import (
    PYTORCHTRAININGJOBS,
    TensorStackEngine,
    TensorStackOptions,
    form_of,
)
from airflow_elastic.engines.kube.options import options_of
from airflow_elastic.spec.errors import EngineError
from airflow_elastic.spec.run import RunSpec, Workers
from tests.support.machine.patience import until_async


@pytest.fixture(autouse=True)
async def published(client: Client, form: str) -> None:
    """The schema is published a moment after the kind."""

    async def told() -> bool:
        schema = await client.schema(PYTORCHTRAININGJOBS)
        return bool(schema) and form_of(schema) == form and await client.knows(PYTORCHTRAININGJOBS)

    await until_async(told, "the schema")


RENDERED: dict[str, dict[str, Any]] = {
    "the least": {},
    "torchrun": {"torchrun": True, "rdzv_backend": "etcd-v2", "torchrun_options": ["--log-dir=/logs"]},
    "queue": {"queue": "team", "queue_rank": 100, "scaling_weight": 3},
    "debug": {"debug": {"command": ["sleep", "inf"], "skip_init_container": True}},
    "tensorboard": {"tensorboard": {"image": "tb:1", "log_filesets": ["t9k://pvc/logs/events"]}},
    "pods": {
        "volumes": [{"mount_path": "/data", "claim": "data"}],
        "shared_memory": "1Gi",
        "labels": {"a": "b"},
    },
}


def a_job(uri: Path, namespace: str, **options: Any) -> Job:
    folder = {"mount_path": str(uri), "host_path": str(uri)}
    volumes = [folder, *options.pop("volumes", ())]
    engine_options = {"image": "t:1", "namespace": namespace, "volumes": volumes, **options}
    spec = RunSpec(
        ("train.py",),
        engine="pytorchtrainingjob",
        workers=Workers(2, min=1, max=4, resources={"cpu": "1"}),
        active_deadline_seconds=3600,
        engine_options=engine_options,
    )
    return Job(str(uri / "run"), spec, 1, 2)


@pytest.mark.parametrize("options", RENDERED.values(), ids=RENDERED)
async def test_the_api_server_takes_it_strictly(
    options: dict[str, Any], form: str, client: Client, namespace: str, tmp_path: Path, kubeconfig: str
) -> None:
    engine, job = TensorStackEngine(), a_job(tmp_path, namespace, kubeconfig=kubeconfig, **options)
    engine.check(job.spec)
    await engine.submit(job)
    made = await client.get(PYTORCHTRAININGJOBS, namespace, job.name)
    known = replace(options_of(job.spec, TensorStackOptions), form=form)  # type: ignore[call-arg]
    ((_, body),) = engine.kind.render(job, known)
    assert made["spec"] == body["spec"], "something was dropped, or is in the other form"
    await engine.delete(job, 0.0)


async def test_scaling_in_place(
    form: str, client: Client, namespace: str, tmp_path: Path, kubeconfig: str
) -> None:
    engine, job = TensorStackEngine(), a_job(tmp_path, namespace, kubeconfig=kubeconfig)
    await engine.submit(job)
    if form == "guide":
        with pytest.raises(EngineError, match="not elastic"):
            await engine.scale(job, 3)
        return
    await engine.scale(job, 3)
    made = await client.get(PYTORCHTRAININGJOBS, namespace, job.name)
    assert made["spec"]["elastic"]["expectedReplicas"] == 3


async def test_pause(form: str, client: Client, namespace: str, tmp_path: Path, kubeconfig: str) -> None:
    engine, job = TensorStackEngine(), a_job(tmp_path, namespace, kubeconfig=kubeconfig, pause=True)
    if form == "guide":
        with pytest.raises(EngineError, match="pause"):
            await engine.submit(job)
        return
    await engine.submit(job)
    async for status in engine.watch(job):
        assert {worker.reason for worker in status.workers} == {"the PyTorchTrainingJob is paused"}
        break
