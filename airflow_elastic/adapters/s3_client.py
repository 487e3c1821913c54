"""How S3 clients are made: patient with servers that stumble, and never shared across a fork."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from airflow_elastic.spec.errors import StoreUnfit

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECT_S, READ_S = 5, 30
ATTEMPTS = 6  # of one request; botocore's standard mode waits up to 20 s, with jitter, between two of them
_CONNECTIONS = 32
_PART_BYTES = 16 << 20


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
    """One S3 client for each process, made at first use; a forked child makes its own."""

    def __init__(self, factory: ClientFactory | None = None) -> None:
        self._factory = factory
        self._made: dict[int, Any] = {}  # by process: two must not talk through one connection
        self._locks: dict[int, threading.Lock] = {}  # likewise: at a fork another thread may hold the lock

    def get(self) -> Any:
        """This process's client. Raises StoreUnfit without boto3, and what the session or factory raises."""
        pid = os.getpid()
        if (client := self._made.get(pid)) is None:
            with self._locks.setdefault(pid, threading.Lock()):  # threads may share a client, not its making
                if (client := self._made.get(pid)) is None:
                    client = _make(self._factory)
                    self._made = {pid: client}
        return client


def _make(factory: ClientFactory | None) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise StoreUnfit(
            "an s3:// URI needs boto3, which is not installed here: pip install 'airflow-elastic[s3]'"
        ) from None
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=_CONNECTIONS,
        user_agent_extra="airflow-elastic",
    )
    source: Any = boto3.session.Session() if factory is None else factory
    if not hasattr(source, "client"):
        return source(config)
    # AWS_REGION is what EKS and Lambda set and other SDKs read; boto3 alone reads only AWS_DEFAULT_REGION.
    region = source.region_name or os.environ.get("AWS_REGION")
    return source.client("s3", config=config, region_name=region)


def transfer_config() -> Any:
    """How large objects are cut. By the classic client: the one on awscrt fails on IP addresses."""
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(
        multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, preferred_transfer_client="classic"
    )
