"""The runs below one root, for the server of `airflow-elastic ui`."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fastapi import HTTPException

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.views.all_runs.below import index_of, key_of, path_of, store_of
from airflow_elastic.views.cache import Readers
from airflow_elastic.web.api.guard import own_origins
from airflow_elastic.web.api.host import Opened

if TYPE_CHECKING:
    from fastapi import Request


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
        self.index = index_of(self.root)
        self._user = _person()

    def roots(self) -> list[str]:
        return [self.root.uri]

    def open(self, request: Request) -> Opened:
        key = key_of(request.path_params["id"])
        if key is None:
            raise HTTPException(404, "there is no run of this id: it is not one that the list of runs has")
        return Opened(self.readers.of(store_of(self.root, key)), path_of(key), self._user, edit=True)

    def listed(self, request: Request) -> tuple[float, list[dict[str, Any]]]:
        return self.index.rows()

    def origins(self, request: Request) -> set[str]:
        return own_origins(request)

    def audit(self, request: Request, opened: Opened, action: str, given: Mapping[str, Any]) -> None:
        """The run's own record has the person: there is no other one."""


def _person() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"
