"""Which tests must not run beside each other."""

from __future__ import annotations

#: There is one cluster, which tests break; and one Airflow after the other is enough for a machine.
_TOGETHER = {
    "cluster": ("tests/cluster/", "tests/bench/test_kube_"),
    "airflow": ("tests/airflow/test_", "tests/e2e/test_demo"),
}


def group_of(nodeid: str) -> str:
    """The group of a test, by its module: what a module has made serves all its tests."""
    module = nodeid.partition("::")[0]
    return next((name for name, places in _TOGETHER.items() if module.startswith(places)), module)
