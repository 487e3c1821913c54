"""Opens the Brain for a command. Its packages are imported only then: they are an extra."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_elastic.spec.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_elastic.brain.database import Database


@contextlib.contextmanager
def opened() -> Iterator[Database]:
    """The database of the environment. Raises InvalidInput where the extra is missing."""
    try:
        from airflow_elastic.brain.database import Database
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("sqlalchemy", "alembic"):
            raise
        raise InvalidInput(
            f"the Brain needs the package {error.name}: pip install 'airflow-elastic[brain]'"
        ) from None
    database = Database()
    try:
        yield database
    finally:
        database.close()
