"""Makes S3 clients: they retry a failed request, with backoff and jitter, and no fork shares one."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.adapters.plugins import how_to_install
from airflow_elastic.adapters.storage.s3.ranges import use_signed_urls
from airflow_elastic.spec.errors import StoreUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_S, READ_S = 5, 30
ATTEMPTS = 6  # of one request; botocore waits up to 1, 2, 4, 8 and 16 s, with jitter, between them

#: Requests at once, of one process: what several of them bring together is far more than one can.
CONNECTIONS = min(32, 4 * len(os.sched_getaffinity(0)))


class Session(Protocol):
    """What we need of a `boto3.session.Session`."""

    @property
    def region_name(self) -> str | None: ...

    def client(self, service_name: str, **options: Any) -> Any: ...


if TYPE_CHECKING:
    # Where clients come from: a session, or a callable that gets a botocore `Config` with our timeouts and
    # retries and returns an S3 client made with it.
    ClientFactory = Session | Callable[[Any], Any]


class Clients:
    """One S3 client for each process, made at first use; a forked child makes its own.

    Args:
        factory: where clients come from. Default: boto3's usual chain.
        bulk: for large objects. What such a client sends has a checksum among the headers that it signs, and is not
            hashed for the signature besides, which would take longer than a good network does.
    """

    def __init__(self, factory: ClientFactory | None = None, *, bulk: bool = False) -> None:
        self._factory, self._bulk = factory, bulk
        self._made: dict[int, Any] = {}  # by process: two must not talk through one connection
        self._locks: dict[int, threading.Lock] = {}  # likewise: at a fork another thread may hold the lock

    def get(self) -> Any:
        """This process's client. Raises StoreUnfit without boto3, and what the session or factory raises."""
        pid = os.getpid()
        if (client := self._made.get(pid)) is None:
            with self._locks.setdefault(pid, threading.Lock()):  # threads may share a client, not its making
                if (client := self._made.get(pid)) is None:
                    client = _made(self._factory, self._bulk)
                    self._made = {pid: client}
        return client


def sends_checksums(client: Any) -> bool:
    """Whether it may give a checksum with what it sends, which some servers do not understand."""
    return bool(client.meta.config.request_checksum_calculation != "when_required")


def _made(factory: ClientFactory | None, bulk: bool) -> Any:
    client = _make(factory, {"payload_signing_enabled": False} if bulk else None)
    # Settings are known only now; without a checksum, the signature is all that tells the bytes from others.
    if bulk and not sends_checksums(client):
        client = _make(factory, None)
    if bulk:  # memory counts as a file there, and botocore would ask the server for leave before it sends one
        from botocore.handlers import add_expect_header

        client.meta.events.unregister("before-call.s3", add_expect_header)
        use_signed_urls(client)
    return client


def _make(factory: ClientFactory | None, s3: dict[str, Any] | None) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StoreUnfit(
            f"an s3:// URI needs boto3, which is not installed here: {how_to_install('boto3')}"
        ) from None
    # Not mode "standard": that has a budget of retries, which answers of 404 do not fill up again. Who looks again and
    # again for what is not there yet, as workers and controllers do, would have none left on a bad day.
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "legacy", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        user_agent_extra="airflow-elastic",
        s3=s3,
    )
    source: Any = boto3.session.Session() if factory is None else factory
    if not hasattr(source, "client"):
        return source(config)
    # AWS_REGION is what EKS and Lambda set and other SDKs read; boto3 alone reads only AWS_DEFAULT_REGION.
    region = source.region_name or os.environ.get("AWS_REGION")
    return source.client("s3", config=config, region_name=region)
