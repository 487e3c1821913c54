"""Local ports: finding one, and finding out early that one cannot be had."""

from __future__ import annotations

import socket

from airflow_elastic.testing.airflow_rest import AirflowError


def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int) -> None:
    """Find out before the API server does, which says it in the middle of a long log.

    Raises:
        AirflowError: the port is taken, or this user must not use it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise AirflowError(
                f"port: given {port}, which cannot be had ({error}). Choose another, or None for a free one"
            ) from None
