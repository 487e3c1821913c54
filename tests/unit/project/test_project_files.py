"""Files about the project: they agree with each other, and with what is here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import airflow_elastic

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

#: Its maintainers ask for this branch, which they move with each release.
BRANCHES = {"pypa/gh-action-pypi-publish@release/v1"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in read(workflow)["jobs"].values() for step in job["steps"]]


def test_the_citation_names_this_version_and_license() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == airflow_elastic.__version__
    assert citation["license"] == PROJECT["license"]


@pytest.mark.parametrize("workflow", [*GITHUB.glob("workflows/*.yml")], ids=lambda path: path.stem)
def test_workflows_pin_actions_and_run_what_is_here(workflow: Path) -> None:
    for step in steps(workflow):
        uses = step.get("uses")
        assert uses is None or uses in BRANCHES or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", uses)
        assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= TARGETS


def test_the_wheel_is_tried_on_each_python_that_is_named() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert read(GITHUB / "workflows" / "ci.yml")["jobs"]["wheel"]["strategy"]["matrix"]["python"] == named


def test_only_the_jobs_that_sign_may_ask_for_an_identity() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    may = {name for name, job in jobs.items() if job["permissions"].get("id-token") == "write"}
    assert may == {"attest", "publish"}
    assert (jobs["attest"]["needs"], jobs["publish"]["needs"]) == ("build", "attest")


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_issue_forms_have_what_github_wants(form: str) -> None:
    body = read(GITHUB / "ISSUE_TEMPLATE" / f"{form}.yml")["body"]
    ids = [part["id"] for part in body if part["type"] != "markdown"]
    assert len(ids) == len(set(ids))
    assert all(part["attributes"]["label"] for part in body if part["type"] != "markdown")
    if form == "bug":
        engines = next(part for part in body if part.get("id") == "engine")["attributes"]["options"]
        assert set(PROJECT["entry-points"]["airflow_elastic.engines"]) == set(engines) - {"another"}


def test_hooks_before_a_commit_download_nothing() -> None:
    repos = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    assert {hook["language"] for hook in repos[0]["hooks"]} == {"system"}


def test_the_page_on_installing_names_each_extra_and_this_version() -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    table = page[page.index("| extra |") :].partition("\n\n")[0]
    assert set(re.findall(r"^\| `([\w]+)` \|", table, re.MULTILINE)) == set(PROJECT["optional-dependencies"])
    assert set(re.findall(r"airflow_elastic-([\d.]+)-py3", page)) == {airflow_elastic.__version__}
