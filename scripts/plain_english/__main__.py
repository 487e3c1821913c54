"""Check the English of the project, or only these files: `python -m scripts.plain_english [FILE …]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.plain_english.rules import offences

ROOT = Path(__file__).parents[2]
FOLDERS = ("airflow_elastic", "dags", "demo", "docs", "examples")
PAGES = ("CONTRIBUTING.md", "README.md")


def project_files() -> list[Path]:
    """All files that are checked by default."""
    found = (
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".md", ".py") and "node_modules" not in path.parts
    )
    return sorted([*found, *(ROOT / page for page in PAGES)])


def main() -> int:
    """Print each offence, and what to write instead. Returns the exit status: 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m scripts.plain_english", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: the whole project")
    count = 0
    for path in parser.parse_args().files or project_files():
        for offence in offences(path):
            print(f"{path.resolve().relative_to(ROOT)}:{offence.line}: {offence.rule}: {offence.message}")
            count += 1
    print(f"{count} offences against plain English" if count else "Plain English: no offence")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
