"""`airflow-elastic doctor`: which engines and launchers this machine can use, and what is missing."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import click
from rich.text import Text

import airflow_elastic
from airflow_elastic.adapters.plugins import PackageMissing, how_to_install, lacking
from airflow_elastic.adapters.storage.open import describe
from airflow_elastic.cli import console as say
from airflow_elastic.cli.find_run import json_option
from airflow_elastic.cli.help_text import Command
from airflow_elastic.engines.api import Finding, engine_names, find_engine
from airflow_elastic.launchers import find_launcher, launcher_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Optional modules, and what needs them. They are not imported: torch alone takes seconds.
_OPTIONAL = {
    "torch": "workers need it, also those of the local engine",
    "numpy": "workers need it, also those of the local engine",
    "airflow": "only Airflow's side needs it",
    "boto3": "runs on s3:// need it",
    "kubernetes_asyncio": "engines whose workers run on a cluster need it",
    "sqlalchemy": "the memory of past runs needs it",
}


@dataclass(frozen=True, slots=True)
class _Line:
    """One check: its subject, whether it passed, and whether every machine needs it."""

    subject: str
    ok: bool
    text: str
    needed: bool = True


@click.command(cls=Command)
@click.argument("uri", required=False)
@click.option(
    "--namespace", metavar="NS", help="Ask for the rights in this namespace of a cluster.  [default: default]"
)
@json_option
def doctor(uri: str | None, namespace: str | None, as_json: bool) -> int:
    """Show which engines and launchers this machine can use.

    It also shows what is missing for the others. With a URI it checks whether a run can be stored there: it writes a
    small object and removes it again. Exits 1 if a needed part is missing, or no engine can be used.

    Examples:
      airflow-elastic doctor
      airflow-elastic doctor s3://bucket/runs
      airflow-elastic doctor --namespace ml
    """
    lines = [*_python(), *_engines(namespace), *_launchers(), *(_store(uri) if uri is not None else ())]
    well = all(line.ok for line in lines if line.needed)
    if as_json:
        say.print_json({"ok": well, "findings": [asdict(line) for line in lines]})
    else:
        console = say.console()
        width = max(len(line.subject) for line in lines)
        for line in lines:
            mark, style = ("✓", "green") if line.ok else ("✗", "bold red") if line.needed else ("–", "yellow")
            console.print(
                Text.assemble((mark, style), f" {line.subject:{width}}  {line.text}"), soft_wrap=True
            )
    return 0 if well else 1


def _python() -> Iterator[_Line]:
    yield _Line("airflow-elastic", True, airflow_elastic.__version__)
    linux = sys.platform == "linux"
    yield _Line("python", True, f"{platform.python_version()}, {sys.executable}")
    yield _Line("system", linux, f"{platform.system()} {platform.release()}", needed=False)
    for module, purpose in _OPTIONAL.items():
        why = lacking(module)
        lacks = f"{why}; {purpose}: {how_to_install(module)}"
        yield _Line(module, why is None, "installed" if why is None else lacks, needed=False)


def _engines(namespace: str | None) -> Iterator[_Line]:
    usable = False
    for name in engine_names():
        findings = _of_engine(name, namespace)
        usable = usable or all(finding.ok or finding.part for finding in findings)
        for finding in findings:
            yield _Line(f"engine {finding.subject}", finding.ok, finding.text, finding.needed)
    if not usable:
        yield _Line(
            "engines", False, "none can be used here: see what is missing above, and install or set it up"
        )


def _of_engine(name: str, namespace: str | None) -> Sequence[Finding]:
    try:
        return find_engine(name).doctor(namespace)
    except PackageMissing as error:
        text = f"needs {error.module}, which is not installed: {how_to_install(error.module)}"
    except Exception as error:  # any error of a third-party engine: the other engines are still checked
        text = f"cannot be used here: {type(error).__name__}: {error}"
    return [Finding(name, False, text, needed=False)]


def _launchers() -> Iterator[_Line]:
    for name in launcher_names():
        try:
            launcher = find_launcher(name)
            needs = ("torch", "numpy", *((launcher.module,) if launcher.module else ()))
            missing = [f"{one} ({why}): {how_to_install(one)}" for one in needs if (why := lacking(one))]
            text = f"not here: workers need {missing[0]}" if missing else launcher.summary
        except PackageMissing as error:
            missing = [error.module]
            text = f"needs {error.module}, which is not installed: {how_to_install(error.module)}"
        except Exception as error:  # as with engines
            missing, text = [name], f"cannot be used here: {type(error).__name__}: {error}"
        yield _Line(f"launcher {name}", not missing, text, needed=False)


def _store(uri: str) -> Iterator[_Line]:
    told = describe(uri)
    at = f" at {told.endpoint}" if told.endpoint else ""
    yield _Line("run URI", told.fit, told.detail if not told.fit else f"{told.uri}{at}: {told.detail}")
