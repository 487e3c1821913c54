"""`make site` builds docs/ into a site, and refuses what leads nowhere: a page, a heading, a file beside docs/."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.support.runs.pages import ROOT

MKDOCS = ROOT / ".docs/bin/mkdocs"

pytestmark = pytest.mark.skipif(not MKDOCS.exists(), reason="run `sh scripts/setup docs` to run this")


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [str(MKDOCS), "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=checkout, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def text(page: Path) -> str:
    """What a reader sees of a page, but for code."""
    article = page.read_text().partition("<article")[2].partition("</article>")[0]
    prose = re.sub(r"<(pre|code)\b.*?</\1>", "", article, flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]+>", "", prose))


def test_no_markdown_is_left_on_the_pages(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name == "index.html"]
    assert len(pages) >= 50
    for page in pages:
        assert text(page).strip(), page
        left = re.findall(r"```|^\|.*\|$|\]\(|^ *[-*] .*$|^#+ .*$", text(page), re.MULTILINE)
        assert not left, f"{page.relative_to(site)}: {left[0]}"


def test_files_beside_docs_are_pages_of_the_site(site: Path) -> None:
    assert 'href="../../how-to/build-images/"' in (site / "source/CONTRIBUTING/index.html").read_text()
    example = (site / "source/examples/train_lightning.py/index.html").read_text()
    assert "lightning" in example.partition("<article")[2]


def test_what_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    for name in ("airflow_elastic", "docs", "dags", "examples", "findings"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    with (tmp_path / "docs/index.md").open("a") as page:
        page.write("\n[one](reference/gone.md) [two](reference/cli.md#gone) [three](../gone.py)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for target in ("reference/gone.md", "#gone", "../gone.py"):
        assert re.search(rf"WARNING.*{re.escape(target)}", done.stderr), done.stderr
