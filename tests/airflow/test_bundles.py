"""An Airflow of two teams, whose DAGs are in a bundle each: that of one team is a git repository."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.testing.airflow_rest import poll
from airflow_elastic.testing.standalone import Standalone
from tests.support.machine.patience import PATIENCE_SECONDS
from tests.support.machine.tries import Try

pytest.importorskip("airflow.providers.git", reason="install apache-airflow-providers-git to run this")
pytestmark = [pytest.mark.slow, pytest.mark.airflow, pytest.mark.timeout(900)]

TEAMS = ("red", "blue")
SCRIPT = Path(__file__).parent / "scripts" / "tick.py"
DAG = """
from airflow.sdk import DAG

from airflow_elastic.operators import ElasticTrainOperator

with DAG("{team}_train", schedule=None):
    ElasticTrainOperator(
        task_id="train",
        command=["tick.py", "--seconds", "3600", "--until={{{{ dag_run.conf['until'] }}}}"],
        launcher="python",
        poll_interval=0.5,
        elastic_conn_id="ours",
    )
"""


class Repository:
    """A git repository with the DAG of a team and its script."""

    def __init__(self, folder: Path, team: str) -> None:
        self.folder = folder
        (folder / "dags").mkdir(parents=True)
        (folder / "dags" / "train.py").write_text(DAG.format(team=team))
        shutil.copy(SCRIPT, folder / "dags" / "tick.py")
        self._git("init", "--quiet", "--initial-branch=main")
        self.commit()

    def commit(self) -> str:
        """Commit everything; the hash."""
        self._git("add", ".")
        self._git("-c", "user.name=a test", "-c", "user.email=test@example.com", "commit", "-qm", "A change")
        return self._git("rev-parse", "HEAD")

    def _git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("repository"), "red")


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where each team's runs lie, by its connection `ours`."""
    return {team: tmp_path_factory.mktemp(team) for team in TEAMS}


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository, roots: dict[str, Path]
) -> Iterator[Standalone]:
    """Two teams with a bundle, a connection, a user and a triggerer each."""
    blue = tmp_path_factory.mktemp("blue dags")
    (blue / "train.py").write_text(DAG.format(team="blue"))
    shutil.copy(SCRIPT, blue / "tick.py")
    git = {
        "repo_url": str(repository.folder),
        "tracking_ref": "main",
        "subdir": "dags",
        "refresh_interval": 2,
    }
    bundles = [
        {"name": "of-red", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": git},
        {
            "name": "of-blue",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(blue)},
        },
    ]
    for bundle, team in zip(bundles, TEAMS, strict=True):
        bundle["team_name"] = team
    ours = {
        team: json.dumps({"conn_type": "elastic", "extra": {"run_root": str(root)}})
        for team, root in roots.items()
    }
    env = {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin,rita:user:red,bob:user:blue",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "AIRFLOW__ELASTIC__PAGE_ROOTS": ",".join(map(str, roots.values())),
        **{f"AIRFLOW_CONN__{team.upper()}___OURS": connection for team, connection in ours.items()},
    }
    home = tmp_path_factory.mktemp("airflow")
    users = {"admin": "admin", "rita": "user", "bob": "user"}
    running = Standalone(home, blue, env=env, users=users, progress=print)
    running.command("db", "migrate", timeout=PATIENCE_SECONDS)
    running.command("teams", "sync", timeout=PATIENCE_SECONDS)
    running.start()
    try:
        for team, connection in ours.items():
            # A triggerer asks for a connection without the name of its team, and finds none of a team.
            running.environment["AIRFLOW_CONN_OURS"] = connection
            words = ["triggerer", "--team-name", team, "--skip-serve-logs"]
            running._more.append(running._spawn(words, home / f"{team}.log"))
        del running.environment["AIRFLOW_CONN_OURS"]
        yield running
    finally:
        running.stop(detached=True)


@pytest.fixture(scope="module")
def runs(airflow: Standalone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Try]:
    """A run of each team; the file `red` or `blue` ends it."""
    signs = tmp_path_factory.mktemp("signs")
    begun = {}
    for team in TEAMS:
        airflow.wait_for_dag(f"{team}_train")
        run_id = airflow.trigger(f"{team}_train", {"until": str(signs / team)})
        begun[team] = Try(airflow, f"{team}_train", run_id)
    for one in begun.values():
        one.wait("deferred")
        one.wait_ticks(2)
    return begun


def status(airflow: Standalone, one: Try, user: str) -> int:
    """The HTTP status of the run's page for somebody."""
    token = airflow.login(user, airflow.passwords[user])
    path = f"/elastic/runs/{one.dag}/{one.run_id.replace('+', '%2B')}/train?format=json"
    return airflow.request("GET", path, headers={"Authorization": f"Bearer {token}"}).status_code


def test_each_team_has_its_connection_and_its_pages(
    airflow: Standalone, runs: dict[str, Try], roots: dict[str, Path]
) -> None:
    for team, one in runs.items():
        assert Path(one.uri).is_relative_to(roots[team])
        links: Any = airflow.rest("GET", f"dags/{one.dag}/dagRuns/{one.run_id}/taskInstances/train/links")
        assert links["extra_links"]["Elastic run"].endswith("/tasks/train/plugin/training")
    seen = {user: [status(airflow, runs[team], user) for team in TEAMS] for user in ("admin", "rita", "bob")}
    assert seen == {"admin": [200, 200], "rita": [200, 403], "bob": [403, 200]}


def test_a_run_goes_on_with_its_own_commit_and_after_its_end_with_a_new_one(
    airflow: Standalone, runs: dict[str, Try], repository: Repository
) -> None:
    red = runs["red"]
    process = red.wait_ticks(2)
    before = red.run()
    script = repository.folder / "dags" / "tick.py"
    script.write_text(script.read_text() + "# changed\n")
    new = repository.commit()
    poll(
        "the new commit to be read",
        lambda: airflow.rest("GET", f"dags/{red.dag}")["bundle_version"] == new or None,
        timeout=PATIENCE_SECONDS,
        hint=airflow.condition,
    )
    assert before.spec.source_root
    assert new not in before.spec.source_root
    red.clear()
    poll(
        "the new try to own the run",
        lambda: red.run().owner != before.owner or None,
        timeout=PATIENCE_SECONDS,
    )
    red.wait("deferred")
    assert red.ticks()[-1][1] == process
    assert red.run().spec.source_root == before.spec.source_root, (
        "a DAG run keeps its commit until it has ended"
    )

    red.mark("failed")
    airflow.wait_run(red.dag, red.run_id, "failed", timeout=PATIENCE_SECONDS)
    red.wait_ended()
    airflow.clear_task(red.dag, red.run_id, "train", run_on_latest_version=True)
    words = before.spec.command
    Path(next(word for word in words if "until" in word).removeprefix("--until=")).touch()
    red.wait("success")
    after = red.run()
    assert red.number() == 3
    assert new in (after.spec.source_root or "")
    assert len(after.attempts) == 2
