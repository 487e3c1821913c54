"""Tests in several processes: what must not run beside each other does not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.groups import group_of
from tests.support.machine.patience import PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/cluster/kinds/test_job.py::TestJob::test_success", "cluster"),
        ("tests/bench/test_kube_watch.py::test_a_few", "cluster"),
        ("tests/airflow/test_dags.py::test_x[a::b]", "airflow"),
        ("tests/e2e/test_demo.py::test_x", "airflow"),
        ("tests/airflow/units/test_tries.py::test_x", "tests/airflow/units/test_tries.py"),
        ("tests/unit/engines/kube/render/test_pod.py::test_x", "tests/unit/engines/kube/render/test_pod.py"),
    ],
)
def test_by_module_but_for_what_there_is_one_of(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_each_group_is_in_one_process(tmp_path: Path) -> None:
    """Of real tests: the processes say who has run what."""
    modules = [
        "tests/unit/core/checkpoints/test_save_interval.py",
        "tests/unit/core/checkpoints/test_recovery_choice.py",
        "tests/unit/core/health/test_stragglers.py",
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        f"--basetemp={tmp_path}",
    ]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, *modules], env=plain, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout
    ran = set(re.findall(r"\[(gw\d)\].*? (tests/\S+?)::", done.stdout))
    assert {module for _, module in ran} == set(modules)
    assert len({process for process, _ in ran}) == 2
    assert len(ran) == len(modules), ran
