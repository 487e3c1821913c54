"""What is imported where: the training side never needs Airflow, the controlling side never torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in BLOCKED:
            raise ImportError(f'{name} is blocked')

BLOCKED = set(sys.argv[1].split(','))
sys.meta_path.insert(0, Blocker())
for module in sys.argv[2:]:
    __import__(module)
assert not BLOCKED & {name.partition('.')[0] for name in sys.modules}
"""


@pytest.mark.parametrize(
    ("blocked", "modules"),
    [
        (
            "airflow",
            [
                "airflow_elastic.runtime.session.session",
                "airflow_elastic.runtime.agent.node_host",
                "airflow_elastic.runtime.agent.agent",
            ],
        ),
        (
            "airflow,torch,boto3,numpy,kubernetes_asyncio",
            ["airflow_elastic.control", "airflow_elastic.cli.main"],
        ),
        (
            "airflow,torch,boto3,numpy,kubernetes_asyncio",
            ["airflow_elastic.engines.local", "airflow_elastic.launchers"],
        ),
        (
            "airflow,accelerate,lightning,transformers",
            ["airflow_elastic.frameworks.epochs"],
        ),
        ("airflow,torch,boto3,numpy", ["airflow_elastic.runtime", "airflow_elastic.runtime.rank.run"]),
        (
            "airflow,torch,boto3,numpy,click,rich,yaml",
            ["airflow_elastic.core.machine", "airflow_elastic.spec.run"],
        ),
    ],
)
def test_imports_without(blocked: str, modules: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, blocked, *modules], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, "torch", "airflow_elastic.runtime.session.session"],
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
