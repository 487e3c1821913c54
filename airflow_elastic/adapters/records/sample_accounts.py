"""Reads the accounts of samples that ranks have consumed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_elastic.spec import layout
from airflow_elastic.spec.checkpoints.sample_records import Account
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.adapters.storage.store import Store


def read_accounts(store: Store) -> Iterator[Account]:
    """All of them, oldest attempt first.

    Raises:
        StoreError: one cannot be read: then nothing can be proved.
    """
    for entry in store.list(layout.SAMPLES):
        try:
            yield decode(Account, json.loads(store.get(entry.key) or b""))
        except (ValueError, SpecError) as error:
            raise StoreError(
                f"{store.uri}/{entry.key} cannot be read as an account of samples: {error}"
            ) from error
