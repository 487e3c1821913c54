"""A TensorBoard beside the workers on a real cluster, opened with the command that the run prints."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.kube import Client
from airflow_elastic.adapters.kube.resources import PODS
from airflow_elastic.core.event_sentences import board_command
from airflow_elastic.testing.ports import free_port
from tests.cluster.kinds.test_training import training
from tests.support.driving import driving
from tests.support.kubernetes import kube
from tests.support.kubernetes.cluster import pods_of


@contextlib.contextmanager
def at_work(command: str, kubectl: kube.Kubectl) -> Iterator[None]:
    """A shell command beside the test, with all that it has started."""
    words = ["bash", "-c", f'kubectl() {{ {shlex.join(kubectl.command)} "$@"; }}; {command}']
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def shown(port: int) -> dict[str, Any]:
    """The scalars that TensorBoard shows, by the folders of the event files; none while it does not answer."""
    with contextlib.suppress(OSError, ValueError):
        address = f"http://localhost:{port}/data/plugin/scalars/tags"
        with urllib.request.urlopen(address, timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    return {}


@pytest.mark.slow
async def test_it_shows_the_run_and_ends_with_it(
    shared_folder: Path, pod_options: dict[str, Any], namespace: str, kubectl: kube.Kubectl, client: Client
) -> None:
    port = free_port()
    spec = training(
        "job",
        {**pod_options, "tensorboard": {"port": port}},
        *("--epochs=40", "--step-seconds=0.2"),
        tensorboard=True,
    )
    async with driving(shared_folder / "run", spec) as driven:
        await driven.at_step(5)
        job = driven.state.attempt.job
        assert job is not None
        command = board_command(spec, job)
        assert command is not None
        with at_work(command, kubectl):
            await driven.until(
                lambda: "loss" in shown(port).get("attempt-0001", {}), "the loss in TensorBoard"
            )
        names = [pod["metadata"]["name"] for pod in await pods_of(driven, client, namespace)]
        state = await driven.end()
    assert (state.outcome, len(state.attempts)) == ("succeeded", 1), state.reason
    for name in names:  # no sidecar keeps it on its machine
        await kube.phase_of(client, PODS, namespace, name, "Succeeded")
