from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite("airflow_elastic.testing.store_conformance")

from tests.support import s3  # noqa: E402 - after the line above, which must come before any import of the suite

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    """A real S3 server: the one that ELASTIC_TEST_S3_ENDPOINT names, else moto's in a process of its own."""
    with s3.s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[s3.S3Server]:
    """For what needs a server that checks no signatures."""
    with s3.moto_server() as server:
        yield server


@pytest.fixture(scope="session")
def _fault_proxy(s3_server: s3.S3Server) -> Iterator[s3.FaultProxy]:
    with s3.fault_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def faults(_fault_proxy: s3.FaultProxy) -> Iterator[s3.FaultProxy]:
    """The S3 server behind a proxy that can be told to misbehave, with no rules at first."""
    _fault_proxy.rules()
    yield _fault_proxy
    _fault_proxy.rules()
