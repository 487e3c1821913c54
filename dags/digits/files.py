"""Files of these DAGs, in a folder or on S3: tasks on several machines read and write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_elastic.adapters.storage.open import open_store

if TYPE_CHECKING:
    from airflow_elastic.adapters.storage.store import Store


def read(uri: str, opened_by: Callable[[str], Store] = open_store) -> bytes:
    """The file at a path or an s3:// URI.

    Args:
        uri: of the file.
        opened_by: opens the folder that it is in. Default: with what the environment says about credentials.

    Raises:
        FileNotFoundError: there is none.
    """
    folder, _, name = uri.rpartition("/")
    content = opened_by(folder or ".").get(name)
    if content is None:
        raise FileNotFoundError(f"there is no {uri}")
    return content
