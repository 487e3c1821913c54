"""Where the database of the Brain is, from the environment; passwords stay hidden."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from airflow_elastic.brain.errors import URL_VARIABLE, BrainUnfit

_ALLOWED = (
    f"{URL_VARIABLE} takes postgresql://USER:PASSWORD@HOST/DATABASE, or sqlite:////absolute/path/brain.db. "
    "Without it a file in your home is used"
)
_SECRET_WORDS = ("password", "passwd", "pwd", "sslpassword", "token")


def default_url() -> str:
    """The URL of the file that is used where nothing else is said."""
    home = os.environ.get("XDG_DATA_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "share"
    return URL.create("sqlite", database=str(base / "airflow-elastic" / "brain.db")).render_as_string()


def find_url(text: str | None = None) -> URL:
    """The URL of the database: as given, or of the environment, or of the file in the user's home.

    Raises:
        BrainUnfit: it is no URL, or of another kind of database. The text does not repeat it: it may have a password.
    """
    given = text if text is not None else os.environ.get(URL_VARIABLE, "").strip() or default_url()
    try:
        url = make_url(given)
        if url.drivername == "postgresql":  # the driver of the extra, whatever SQLAlchemy prefers
            url = url.set(drivername="postgresql+psycopg2")
        kind = url.get_backend_name()
        if kind in ("sqlite", "postgresql"):
            url.get_dialect().import_dbapi()
    except NoSuchModuleError:
        raise BrainUnfit(
            f"the Brain knows no database of kind {given.partition(':')[0]!r}; {_ALLOWED}"
        ) from None
    except ModuleNotFoundError as error:
        text = f"the Brain needs the package {error.name}: pip install 'airflow-elastic[brain]'"
        raise BrainUnfit(text) from None
    except (ArgumentError, ValueError):
        raise BrainUnfit(f"the URL of the Brain's database cannot be read; {_ALLOWED}") from None
    if kind not in ("sqlite", "postgresql"):
        raise BrainUnfit(f"the Brain knows no database of kind {url.drivername!r}; {_ALLOWED}")
    if kind == "sqlite" and (
        not url.database or url.database == ":memory:" or url.database.startswith("file:")
    ):
        raise BrainUnfit(f"the Brain needs a file for SQLite, which several processes can open; {_ALLOWED}")
    if kind == "sqlite" and url.database is not None:
        url = url.set(database=os.path.abspath(os.path.expanduser(url.database)))
    return url


def masked(url: URL) -> str:
    """The URL without its secrets."""
    query = {name: "***" if name.lower() in _SECRET_WORDS else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def without_secrets(text: str, url: URL) -> str:
    """A text, such as of an error of the driver, without the secrets of the URL."""
    secrets = [url.password, *(value for name, value in url.query.items() if name.lower() in _SECRET_WORDS)]
    for secret in secrets:
        if isinstance(secret, str) and secret:
            text = text.replace(secret, "***")
    return text
