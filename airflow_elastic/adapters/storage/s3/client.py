"""Makes S3 clients. They retry failed requests with backoff and jitter, and are not shared across forks."""

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
ATTEMPTS = 6  # of one request; botocore waits between them for random times of up to 16 s

#: Requests at once, in one process: several connections are much faster than one.
CONNECTIONS = min(32, 4 * len(os.sched_getaffinity(0)))


class Session(Protocol):
    """The part of `boto3.session.Session` that we need."""

    @property
    def region_name(self) -> str | None: ...

    def client(self, service_name: str, **options: Any) -> Any: ...


if TYPE_CHECKING:
    # A session, or a callable that makes an S3 client. The callable gets a botocore `Config` with our timeouts and
    # retries.
    ClientFactory = Session | Callable[[Any], Any]


class Clients:
    """One S3 client for each process, made at first use; a forked child makes its own.

    Args:
        factory: where clients come from. Default: boto3's usual chain.
        bulk: for large objects. Such a client signs a checksum header instead of hashing the data for the signature,
            which would be slower than a good network.
    """

    def __init__(self, factory: ClientFactory | None = None, *, bulk: bool = False) -> None:
        self._factory, self._bulk = factory, bulk
        self._made: dict[int, Any] = {}  # by process: two processes must not share a connection
        self._locks: dict[
            int, threading.Lock
        ] = {}  # by process, because at a fork another thread may hold the lock

    def get(self) -> Any:
        """This process's client. Raises StoreUnfit without boto3, and the errors of the session or factory."""
        pid = os.getpid()
        if (client := self._made.get(pid)) is None:
            with self._locks.setdefault(pid, threading.Lock()):  # threads may share a client, not its making
                if (client := self._made.get(pid)) is None:
                    client = _made(self._factory, self._bulk)
                    self._made = {pid: client}
        return client


def sends_checksums(client: Any) -> bool:
    """Whether it may send checksums, which some servers do not understand."""
    return bool(client.meta.config.request_checksum_calculation != "when_required")


def _made(factory: ClientFactory | None, bulk: bool) -> Any:
    client = _make(factory, {"payload_signing_enabled": False} if bulk else None)
    # Only now are the settings known. Without a checksum, only the signature protects the bytes.
    if bulk and not sends_checksums(client):
        client = _make(factory, None)
    if bulk:  # botocore treats memory as a file, and would ask the server for permission before it sends one
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
    # Not mode "standard": its budget of retries is not refilled by answers of 404. Workers and controllers look again
    # and again for objects that are not there yet, and would have no retries left.
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
    # EKS, Lambda and other SDKs use AWS_REGION; boto3 alone reads only AWS_DEFAULT_REGION.
    region = source.region_name or os.environ.get("AWS_REGION")
    return source.client("s3", config=config, region_name=region)
