"""Writes what can be generated in docs/: `python docs/generate.py`; with `--check` it only says what is stale.

PAGES are whole pages. REGIONS are parts of other pages, between `<!-- generated: NAME -->` and `<!-- end -->`.
Airflow is read, not imported: it may be missing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from generator.airflow import operator_page
from generator.commands import cli_page
from generator.diagrams import attempt_states, packages, purposes
from generator.examples import examples
from generator.index import contents
from generator.kube import owned_names, owner_fields
from generator.metrics import airflow_metrics, prometheus_metrics
from generator.options import options_page
from generator.records import (
    journal_events,
    status_attempt,
    status_example,
    status_fields,
    status_rank,
    status_seconds,
)
from generator.rules import failure_classes, restart_rules
from generator.spec import spec_page

DOCS = Path(__file__).parent

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/spec.md": spec_page,
    "reference/operator.md": operator_page,
    "reference/cli.md": cli_page,
    "reference/options.md": options_page,
}

REGIONS: Mapping[str, tuple[tuple[str, Callable[[], str]], ...]] = {
    "index.md": (("contents", contents),),
    "how-to/build-a-pipeline.md": (("examples", examples),),
    "reference/failures.md": (("classes", failure_classes), ("rules", restart_rules)),
    "reference/pods.md": (("owned", owned_names), ("owners", owner_fields)),
    "explanation/architecture.md": (
        ("packages", packages),
        ("purposes", purposes),
        ("attempts", attempt_states),
    ),
    "reference/journal.md": (("events", journal_events),),
    "reference/metrics.md": (("airflow", airflow_metrics), ("prometheus", prometheus_metrics)),
    "reference/status.md": (
        ("example", status_example),
        ("fields", status_fields),
        ("attempt", status_attempt),
        ("rank", status_rank),
        ("seconds", status_seconds),
    ),
}


def generated() -> Iterator[tuple[Path, str]]:
    """Every generated page, and what it is to hold."""
    for name, page in PAGES.items():
        yield DOCS / name, page()
    for name, regions in REGIONS.items():
        text = (DOCS / name).read_text()
        for region, content in regions:
            begin, end = f"<!-- generated: {region} -->\n", "<!-- end -->"
            before, found, rest = text.partition(begin)
            _, closed, after = rest.partition(end)
            if not found or not closed:
                raise SystemExit(f"docs/{name} has no region {begin.strip()} … {end}")
            text = f"{before}{begin}{content()}{end}{after}"
        yield DOCS / name, text


def stale() -> list[Path]:
    """The pages that are not what they would be if they were generated now."""
    return [path for path, text in generated() if not path.is_file() or path.read_text() != text]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is stale")
    if parser.parse_args().check:
        for path in stale():
            print(f"{path.relative_to(DOCS.parent)} is stale: make docs", file=sys.stderr)
        return int(bool(stale()))
    for path, text in generated():
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(DOCS.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
