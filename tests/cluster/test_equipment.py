"""What the other tests of this folder stand on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow_elastic.adapters.kube import Access, Client
from airflow_elastic.adapters.kube.resources import PODS
from tests.support.kubernetes.kube import Kubectl, namespace_name, phase_of
from tests.support.runs.faults import Faults


def pod(options: dict[str, Any], code: str) -> dict[str, Any]:
    """A pod that runs a line of Python."""
    volumes = list(enumerate(options.get("volumes", ())))
    container = {
        "name": "main",
        "image": options["image"],
        "command": [options["python"], "-c", code],
        "volumeMounts": [{"name": f"v{i}", "mountPath": volume["mount_path"]} for i, volume in volumes],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": f"v{i}", "hostPath": {"path": volume["host_path"]}} for i, volume in volumes],
    }
    return {"metadata": {"name": "one"}, "spec": spec}


def test_a_namespace_is_named_after_its_test() -> None:
    assert namespace_name("test_Some [thing]_odd").startswith("t-some-thing-odd-")
    assert len(namespace_name("test_" + "x" * 200)) <= 63


async def test_a_pod_can_import_what_training_needs_and_write_where_this_machine_reads(
    client: Client, namespace: str, pod_options: dict[str, Any], shared_folder: Path
) -> None:
    code = f"import torch, airflow_elastic.runtime as r; open({str(shared_folder / 'word')!r}, 'w').write(r.__name__)"
    await client.create(PODS, namespace, pod(pod_options, code))
    ended = await phase_of(client, PODS, namespace, "one", "Succeeded", "Failed")
    said = await client.log(namespace, "one", "main", tail=5)
    assert ended["status"]["phase"] == "Succeeded", said
    assert (shared_folder / "word").read_text() == "airflow_elastic.runtime"


async def test_a_pod_can_be_broken(
    client: Client, namespace: str, pod_options: dict[str, Any], faults: Faults
) -> None:
    await client.create(PODS, namespace, pod(pod_options, "import signal; signal.pause()"))
    await phase_of(client, PODS, namespace, "one", "Running")
    faults.pod(namespace, "one", "freeze")
    faults.heal()
    faults.pod(namespace, "one", "signal", "KILL")
    ended = await phase_of(client, PODS, namespace, "one", "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_kubectl_speaks_to_the_same_cluster(kubectl: Kubectl, namespace: str, access: Access) -> None:
    assert kubectl("get", "namespace", namespace, "-o", "name").strip() == f"namespace/{namespace}"
    assert access.kubeconfig
