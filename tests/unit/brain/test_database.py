"""The database of the Brain: where it is, what it refuses, and that its tables are those of the migrations."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from airflow_elastic.brain.database import Database
from airflow_elastic.brain.errors import BrainUnfit, BrainUnreachable
from airflow_elastic.brain.memory import known
from airflow_elastic.brain.place import default_url, find_url, masked
from airflow_elastic.brain.tables import Base
from airflow_elastic.testing.ports import free_port


def test_without_a_url_it_is_a_file_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_ELASTIC_BRAIN", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_url() == f"sqlite:///{tmp_path}/airflow-elastic/brain.db"
    assert known(Database()) == ()
    assert stat.S_IMODE((tmp_path / "airflow-elastic").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/not/allowed")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_url() == f"sqlite:///{tmp_path}/home/.local/share/airflow-elastic/brain.db"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://ada:secret@host/brain", "postgresql://"),
        ("nonsense://ada:secret@host/brain", "knows no database of kind 'nonsense'"),
        ("postgres://ada:secret@host/brain", "postgresql://"),
        ("ada:secret@host", "cannot be read"),
        ("sqlite://", "a file for SQLite"),
        ("sqlite:///:memory:", "a file for SQLite"),
    ],
)
def test_a_url_of_something_else_is_refused_without_its_password(url: str, said: str) -> None:
    with pytest.raises(BrainUnfit) as error:
        Database(url)
    assert said in str(error.value)
    assert "secret" not in str(error.value)
    assert "AIRFLOW_ELASTIC_BRAIN" in str(error.value) or "pip install" in str(error.value)


def test_opening_it_says_nothing_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    url = f"sqlite:///{tmp_path}/brain.db"
    for _ in range(2):  # the first creates the tables
        known(Database(url))
    assert caplog.messages == []
    logging.getLogger("alembic.runtime.migration").info("another program's migrations")
    assert caplog.messages == ["another program's migrations"]


def test_passwords_are_never_shown() -> None:
    url = find_url("postgresql://ada:secret@127.0.0.1/brain?sslpassword=secret&application_name=elastic")
    assert "secret" not in masked(url)
    assert "elastic" in masked(url)


def test_a_server_that_does_not_answer_is_told_without_the_password() -> None:
    database = Database(f"postgresql://ada:secret@127.0.0.1:{free_port()}/brain")
    with pytest.raises(BrainUnreachable) as error:
        known(database)
    assert "secret" not in str(error.value)
    assert "127.0.0.1" in str(error.value)


def fresh(server: str, *statements: str) -> str:
    """The URL of a new database of a server, in which these statements have been run."""
    name = f"new_{secrets.token_hex(4)}"
    where = server.rpartition("/")[0]
    for place, commands in ((server, [f"CREATE DATABASE {name}"]), (f"{where}/{name}", statements)):
        connection = psycopg2.connect(place)
        connection.autocommit = True
        with connection.cursor() as cursor:
            for command in commands:
                cursor.execute(command)
        connection.close()
    return f"{where}/{name}"


def test_airflow_on_postgresql_is_not_touched(server: str) -> None:
    url = fresh(server, "CREATE TABLE dag_run (id INTEGER)", "CREATE TABLE alembic_version (v TEXT)")
    with pytest.raises(BrainUnfit, match="Airflow's metadata"):
        known(Database(url))
    connection = psycopg2.connect(url)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        assert {row[0] for row in cursor.fetchall()} == {"dag_run", "alembic_version"}
    connection.close()


@pytest.mark.parametrize("table", ["dag_run", "alembic_version"])
def test_the_database_of_another_program_is_not_touched(tmp_path: Path, table: str) -> None:
    path = tmp_path / "airflow.db"
    with sqlite3.connect(path) as other:
        other.execute(f"CREATE TABLE {table} (id INTEGER)")
    before = path.read_bytes()
    with pytest.raises(BrainUnfit, match="never touches; create an empty database"):
        known(Database(f"sqlite:///{path}"))
    assert path.read_bytes() == before


def test_a_database_of_a_newer_release_is_told(url: str, database: Database, tmp_path: Path) -> None:
    assert known(database) == ()
    with sqlite3.connect(tmp_path / "data" / "brain.db") as other:
        other.execute("UPDATE brain_version SET version_num = '9999'")
    with pytest.raises(BrainUnfit, match="form 9999, which a newer release"):
        known(Database(url))


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "brain.db"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(BrainUnreachable, match="not a database"):
        known(Database(f"sqlite:///{path}"))


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_migrations_make_the_tables(kind: str, url: str, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        url = fresh(request.getfixturevalue("server"))
    with Database(url).reading() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": "brain_version", "compare_type": True}
        )
        assert compare_metadata(context, Base.metadata) == []


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_processes_may_create_it_at_the_same_time(
    kind: str, url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "postgresql":
        monkeypatch.setenv("AIRFLOW_ELASTIC_BRAIN", fresh(request.getfixturevalue("server")))
    code = "from airflow_elastic.brain.database import Database; from airflow_elastic.brain.memory import known; "
    code += "assert known(Database()) == ()"

    def create(_: int) -> int:
        return subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(Path.cwd())}, check=False
        ).returncode

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(create, range(4))) == [0, 0, 0, 0]
