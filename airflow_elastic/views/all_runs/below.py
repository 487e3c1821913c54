"""The runs below one root, and the ids by which addresses name them."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.keys import key_problem
from airflow_elastic.adapters.storage.list_runs import runs_below
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.adapters.storage.s3.store import S3Store
from airflow_elastic.spec import layout
from airflow_elastic.views.all_runs.index import Index, Place

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


def index_of(root: Store) -> Index:
    """The list of all runs below a root. It may be a run itself."""

    def places() -> list[Place]:
        keys = runs_below(root)
        if not keys and root.list(layout.journal_entry(0)):
            keys = [""]
        return [Place(path_of(key), store_of(root, key).uri, {"key": key}) for key in keys]

    return Index(places, lambda place: store_of(root, place.more["key"]))


def store_of(root: Store, key: str) -> Store:
    """The store of a run at a key below the root; the root itself for an empty one."""
    if not key:
        return root
    store = open_store(f"{root.uri.rstrip('/')}/{key}")
    return store.sharing(root) if isinstance(store, S3Store) and isinstance(root, S3Store) else store


def path_of(key: str) -> str:
    """The path of a run in addresses: `run/ID`."""
    return f"run/{id_of(key)}"


def id_of(key: str) -> str:
    """The id of a run: its key below the root, as base64url without padding; `-` for the root itself."""
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
