"""The web pages: their own tests, which node runs, and in a real browser with made-up runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pages import UI, needs_chromium, run_node

BROWSER_TESTS = sorted((UI / "tests" / "browser").glob("*.test.ts"))


def run_tests(*paths: Path) -> None:
    run_node("--test", "--test-reporter=spec", *map(str, paths))


def test_what_is_pure_in_the_pages() -> None:
    run_tests(*sorted((UI / "tests" / "unit").glob("*.test.ts")))


@pytest.mark.browser
@needs_chromium
@pytest.mark.parametrize("path", BROWSER_TESTS, ids=lambda path: path.name.removesuffix(".test.ts"))
def test_the_pages_in_a_browser(path: Path) -> None:
    run_tests(path)
