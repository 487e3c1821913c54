"""For all tests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings

from tests.support.groups import group_of

# A busy machine is no bug: no example has a time limit. What fails is printed so that it can be run again.
settings.register_profile("ours", deadline=None, print_blob=True)
settings.load_profile("ours")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes share the tests (`make test`), each group stays in one of them."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
