"""Runs on this machine start by forks, but for tests that say `real_start`: `tests.support.forking`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.forking import Zygotes, forking


@pytest.fixture(scope="session")
def zygotes() -> Iterator[Zygotes]:
    made = Zygotes()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _forking(zygotes: Zygotes, request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("real_start"):
        yield
        return
    with forking(zygotes):
        yield
