"""The runs below one root, for the server of `airflow-elastic ui`."""

from __future__ import annotations

import base64
import binascii
import getpass
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from airflow_elastic.adapters.storage.keys import key_problem
from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.views.cache import Readers
from airflow_elastic.views.index import Index, Place
from airflow_elastic.web.api.guard import own_origins
from airflow_elastic.web.api.host import Opened

if TYPE_CHECKING:
    from fastapi import Request

    from airflow_elastic.adapters.storage.store import Store


class RunsBelow:
    """A host of pages: all runs below a folder or an S3 prefix, for one person on this machine.

    Args:
        root: the URI. It may be a run itself.
    """

    mode = "standalone"
    pattern = "/run/{id}"

    def __init__(self, root: str) -> None:
        self.root = open_store(root)
        self.readers = Readers()
        self.index = Index(self._places, lambda place: open_store(place.uri))
        self._user = _person()

    def roots(self) -> list[str]:
        return [self.root.uri]

    def open(self, request: Request) -> Opened:
        key = key_of(request.path_params["id"])
        if key is None:
            raise HTTPException(404, "there is no run of this id: it is not one that the list of runs has")
        reader = self.readers.of(self._store(key))
        return Opened(reader, f"run/{id_of(key)}", self._user, edit=True)

    def listed(self, request: Request) -> tuple[float, list[dict[str, Any]]]:
        return self.index.rows()

    def origins(self, request: Request) -> set[str]:
        return own_origins(request)

    def audit(self, request: Request, opened: Opened, action: str, given: Mapping[str, Any]) -> None:
        """The run's own record has the person: there is no other one."""

    def _store(self, key: str) -> Store:
        return open_store(f"{self.root.uri.rstrip('/')}/{key}") if key else self.root

    def _places(self) -> list[Place]:
        keys = runs_below(self.root)
        if not keys and self.root.list("journal/00000000.json"):
            keys = [""]
        return [Place(f"run/{id_of(key)}", self._store(key).uri, {}) for key in keys]


def id_of(key: str) -> str:
    """The id of a run in addresses: its key below the root, as base64url without padding; `-` for the root itself."""
    return base64.urlsafe_b64encode(key.encode(errors="surrogateescape")).decode().rstrip("=") or "-"


def key_of(ident: str) -> str | None:
    """The key below the root; None for what `id_of` would never make, such as a key that leads out of the root."""
    if ident == "-":
        return ""
    try:
        padded = ident + "=" * (-len(ident) % 4)
        key = base64.b64decode(padded, altchars=b"-_", validate=True).decode(errors="surrogateescape")
    except (binascii.Error, ValueError):
        return None
    return None if not key or key_problem(key) or id_of(key) != ident else key


def _person() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
