"""The documentation: generated pages are fresh, links lead somewhere, and what is printed to be copied works."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.control import Controller, start_run
from airflow_elastic.spec.run import RunSpec
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.runs.pages import DOCS, PAGES, ROOT, blocks


@pytest.fixture(scope="module")
def generate() -> Iterator[Any]:
    sys.path.insert(0, str(DOCS))
    try:
        yield importlib.import_module("generate")
    finally:
        sys.path.remove(str(DOCS))


def test_generated_pages_are_fresh(generate: Any) -> None:
    stale = [str(path.relative_to(ROOT)) for path in generate.stale()]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


# -- links ---------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{target}: there is no such file"
        if anchor:
            assert anchor in anchors(there), (
                f"{target}: there is no such heading, only {sorted(anchors(there))}"
            )


def test_every_page_can_be_reached() -> None:
    reached, pending = set(), [ROOT / "README.md"]
    while pending:
        page = pending.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            pending += [(page.parent / target.partition("#")[0]).resolve() for target in links(page)]
    assert not set(PAGES) - reached - {DOCS / "index.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_nothing_of_a_developers_machine(page: Path) -> None:
    assert not re.findall(r"/work/|/tmp/|/root/|\bpypi\.[a-z]", page.read_text())


# -- status.md -----------------------------------------------------------------------------------------------------


def documented() -> dict[str, set[str]]:
    """The fields that status.md describes: of the document, of `attempts[]`, of `seconds`."""
    text = (DOCS / "reference/status.md").read_text()
    found: dict[str, set[str]] = {}
    for name, after in (
        ("", "<!-- generated: fields -->\n"),
        ("attempts", "<!-- generated: attempt -->\n"),
        ("seconds", "<!-- generated: seconds -->\n"),
    ):
        rows = text.partition(after)[2].strip().partition("\n\n")[0].splitlines()[2:]
        cells = [row.split("|")[1] for row in rows if row.startswith("|")]
        found[name] = {field for cell in cells for field in re.findall(r"`([\w.]+)`", cell)}
    return found


_OPEN = {
    "attempts",
    "ranks",
    "seconds",
    "metrics",
    "newest",
    "unsaved",
    "left_out",
    "unpruned",
    "bad_copy",
    "waiting",
}


def fields(value: dict[str, Any], prefix: str = "") -> set[str]:
    paths = set()
    for key, item in value.items():
        nested = isinstance(item, dict) and key not in _OPEN
        paths |= fields(item, f"{prefix}{key}.") if nested else {prefix + key}
    return paths


def check(document: dict[str, Any]) -> None:
    known = documented()
    assert fields(document) == known[""]
    assert all(attempt.keys() == known["attempts"] for attempt in document["attempts"])
    assert document["seconds"].keys() == known["seconds"]
    assert document["seconds"]["wall"] == pytest.approx(sum(document["seconds"].values()) / 2)


def test_status_md_describes_a_document_that_holds_everything(generate: Any) -> None:
    records = importlib.import_module("generator.records")
    document = records.example_document()
    check(document)
    text = (DOCS / "reference/status.md").read_text()
    attempt, rank = document["attempts"][0], document["ranks"][0]
    inner = {*attempt["failure"], *attempt["stretches"][0], *rank, *document["checkpoints"]["newest"]}
    assert not {name for name in inner if f"`{name}`" not in text}


async def test_status_md_describes_a_real_document(tmp_path: Path) -> None:
    store, engine = open_store(str(tmp_path / "run")), FakeEngine()
    start_run(store, RunSpec(("train.py",), engine_options={"seconds": 0.05}), engine=engine)
    state = await Controller(store, engine, poll_seconds=0.05).drive()
    data = store.get("status.json")
    assert state.outcome == "succeeded", state.reason
    assert data is not None
    check(json.loads(data))


def test_journal_md_shows_an_entry_as_it_is(tmp_path: Path) -> None:
    run = start_run(open_store(str(tmp_path / "run")), RunSpec(("train.py",)), engine=FakeEngine())
    entry = json.loads(run.store.get("journal/00000000.json") or b"")
    (shown,) = (
        json.loads(block.text) for block in blocks("json") if block.page == DOCS / "reference/journal.md"
    )
    assert [*entry][:5] == [*shown][:5]


# -- conformance.md ------------------------------------------------------------------------------------------------


def cluster_tests() -> set[str]:
    """The tests of clusters, and of the suites that they are made of; read, as some need what may be absent."""
    files = [
        *(ROOT / "tests/cluster").rglob("test_*.py"),
        ROOT / "tests/support/kubernetes/cluster.py",
        ROOT / "airflow_elastic/testing/engine_conformance.py",
    ]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize(
    ("name", "least"),
    [("reference/conformance.md", 30), ("adr/0010-cluster-engines.md", 10), ("adr/0030-gangs.md", 10)],
)
def test_tables_of_conformance_name_tests_that_exist(name: str, least: int) -> None:
    text, known = (DOCS / name).read_text(), cluster_tests()
    rows = [row for row in text.splitlines() if row.startswith("|") and not re.match(r"\|[-| ]+$", row)]
    named = [re.findall(r"`(test_\w+)`", row) for row in rows]
    assert [bool(tests) for tests in named] == [False] + [True] * (len(rows) - 1)
    assert len(rows) > least
    assert {test for tests in named for test in tests} <= known


def test_each_line_about_airflow_has_a_test(generate: Any) -> None:
    from generator.around import AROUND

    for _, _, test in AROUND:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text() if name else (ROOT / file).is_file(), test
