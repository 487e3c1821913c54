"""For all tests."""

from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no bug: no example has a time limit. What fails is printed so that it can be run again.
settings.register_profile("ours", deadline=None, print_blob=True)
settings.load_profile("ours")

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What must not run beside each other, where several processes share the tests (`make test`)."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    path = item.path.relative_to(HERE)
    if path.parts[0] == "cluster" or str(path).startswith("bench/test_kube_"):
        return "cluster"  # of which there is one, and tests break it
    if "standalone" in getattr(item, "fixturenames", ()):
        return "airflow"  # which starts once for all of them
    return str(path.with_suffix(""))  # what a module has made serves all its tests
