"""Check the English of the project: `python -m scripts.plain_english [--list FILE … | --update]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.plain_english import ratchet
from scripts.plain_english.rules import offences

ROOT = Path(__file__).parents[2]
FOLDERS = ("airflow_elastic", "dags", "demo", "docs", "examples")
PAGES = ("CONTRIBUTING.md", "README.md")
SHOWN = 10  # offences of a file that has too many


def files() -> list[Path]:
    """All that is checked."""
    found = (
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")
    )
    return sorted([*found, *(ROOT / page for page in PAGES)])


def show(path: Path, limit: int | None = None) -> None:
    """Print the offences of a file."""
    found = offences(path)
    for offence in found[:limit]:
        print(f"{path.relative_to(ROOT)}:{offence.line}: {offence.rule}: {offence.message}")
    if limit and len(found) > limit:
        print(f"  and {len(found) - limit} more")


def main() -> int:
    """Return the exit status: 1 where a file has more offences than it may have."""
    parser = argparse.ArgumentParser(prog="python -m scripts.plain_english", description=__doc__)
    parser.add_argument(
        "--list", nargs="+", type=Path, metavar="FILE", help="list all offences of these files"
    )
    parser.add_argument("--update", action="store_true", help="lower the numbers in baseline.json")
    options = parser.parse_args()
    if options.list:
        for path in options.list:
            show(path.resolve())
        return 0
    counts = {str(path.relative_to(ROOT)): len(offences(path)) for path in files()}
    allowed = ratchet.read()
    if options.update:
        baseline = ratchet.lowered(counts, allowed)
        if baseline is None:
            print(
                f"{sum(counts.values())} offences, {sum(allowed.values())} are allowed: fix the new ones first"
            )
            return 1
        ratchet.write(baseline)
        print(f"plain English: {sum(allowed.values())} -> {sum(counts.values())} old offences")
        return 0
    over = ratchet.exceeding(counts, allowed)
    for name in over:
        print(
            f"{name} has {counts[name]} offences against plain English, {allowed.get(name, 0)} are allowed:"
        )
        show(ROOT / name, SHOWN)
    if over:
        print(
            "Fix as many as are new. Every one of a file: `.venv/bin/python -m scripts.plain_english --list FILE`."
        )
    else:
        print(
            f"Plain English: nothing new; {sum(counts.values())} old offences, {sum(allowed.values())} allowed"
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
