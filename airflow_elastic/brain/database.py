"""The database of the Brain: opened when it is first needed, created and brought to its newest form on first use."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from airflow_elastic.brain.errors import URL_VARIABLE, BrainUnfit, BrainUnreachable
from airflow_elastic.brain.place import find_url, masked, without_secrets
from airflow_elastic.brain.quiet import quietly

with quietly():
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine

#: Seconds to wait for a connection, and for others that write at the same time.
CONNECT_SECONDS, BUSY_SECONDS = 5, 15

#: libpq then gives up a connection to a host that has vanished. By itself it does after a quarter of an hour.
_LIVELY = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 1000 * BUSY_SECONDS,
    "keepalives_idle": CONNECT_SECONDS,
    "keepalives_interval": CONNECT_SECONDS,
    "keepalives_count": 3,
}

_VERSION_TABLE = "brain_version"

#: Of the lock that creators of the tables take on PostgreSQL.
_LOCK = 0x0A1F_E1A5

#: Tables by which databases of other programs are known: the first is Airflow's.
_FOREIGN = ("dag_run", "alembic_version")


class Database:
    """A connection to the database, for any number of threads.

    Args:
        url: any URL of SQLAlchemy for SQLite or PostgreSQL. Default: from the environment.

    Raises:
        BrainUnfit: there can be no Brain under that URL.
    """

    def __init__(self, url: str | None = None) -> None:
        self._url = find_url(url)
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    @property
    def name(self) -> str:
        """Its URL without secrets."""
        return masked(self._url)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that reads. Raises BrainUnfit, BrainUnreachable."""
        with self._translated(), Session(self._ready(), expire_on_commit=False) as session:
            yield session

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose changes are all made at its end, or none. Raises BrainUnfit, BrainUnreachable."""
        with self._translated():
            engine = self._ready().execution_options(elastic_writes=True)
            with Session(engine, expire_on_commit=False) as session, session.begin():
                yield session

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            if self._engine is not None:
                self._engine.dispose()
                self._engine = None

    def _ready(self) -> Engine:
        with self._lock:
            if self._engine is None:
                engine = self._opened()
                try:
                    with quietly():
                        _prepare(engine)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine = engine
            return self._engine

    def _opened(self) -> Engine:
        if self._url.get_backend_name() == "sqlite":
            path = Path(str(self._url.database))
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise BrainUnfit(
                    f"{path.parent}: {error.strerror}; name another place in {URL_VARIABLE}"
                ) from None
            engine = create_engine(
                self._url,
                poolclass=NullPool,
                connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
            )
            event.listen(engine, "connect", _on_connect)
            event.listen(engine, "begin", _on_begin)
            return engine
        lively = {name: value for name, value in _LIVELY.items() if name not in self._url.query}
        return create_engine(self._url, pool_pre_ping=True, pool_size=2, connect_args=lively)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, DBAPIError) as error:
            why = " ".join(str(error.orig).split())
            raise BrainUnreachable(
                f"the Brain at {self.name} has failed: {without_secrets(why, self._url)}"
            ) from None
        except SQLAlchemyError as error:
            why = without_secrets(" ".join(str(error).split()), self._url)
            raise BrainUnreachable(f"the Brain at {self.name} has failed: {why}") from None


def _on_connect(connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin where `_on_begin` says, and not before
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    # A reader that became a writer later would fail at once beside another one, instead of waiting.
    writes = connection.get_execution_options().get("elastic_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _prepare(engine: Engine) -> None:
    """Create the tables, or bring them to this release's form. Several processes may do so at once."""
    newest = _scripts().get_current_head()
    with engine.connect() as connection:
        if _revision(connection) == newest:
            return
    with engine.execution_options(elastic_writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        found = _revision(connection)
        if found == newest:
            return
        if found is None:
            _refuse_foreign(connection)
        config = _config()
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError:
            raise BrainUnfit(
                f"the database of the Brain has form {found}, which a newer release has given it; "
                f"update airflow-elastic, or name another database in {URL_VARIABLE}"
            ) from None


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(
        connection, opts={"version_table": _VERSION_TABLE}
    ).get_current_revision()


def _refuse_foreign(connection: Connection) -> None:
    tables = inspect(connection).get_table_names()
    for name in _FOREIGN:
        if name in tables:
            whose = "Airflow's metadata" if "dag_run" in tables else "another program's data"
            raise BrainUnfit(
                f"this database holds {whose} (it has a table {name!r}), which the Brain never touches; "
                f"create an empty database for it, and name that in {URL_VARIABLE}"
            )


def _config() -> Config:
    config = Config()
    folder = os.path.join(os.path.dirname(__file__), "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())
