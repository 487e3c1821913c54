"""What an agent and a rank in `run.train` say to each other, with a real process as the rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_elastic.runtime.staying.agent_link import ENVIRONMENT, NextGeneration
from airflow_elastic.runtime.staying.rank_links import RankLinks

RANK = """
import os, sys, threading
from airflow_elastic.runtime.staying.agent_link import ENVIRONMENT, AgentLink
woken = threading.Event()
link = AgentLink(os.environ[ENVIRONMENT], woken.set)
if "parked" in sys.argv:
    link.left("parked")
else:
    woken.wait()
if "stuck" in sys.argv:
    threading.Event().wait()
if "out" in sys.argv:
    link.close()
    threading.Event().wait()
if "parked" not in sys.argv:
    link.left("broken")
following = link.next()
if "late" in sys.argv:
    link.close()
    threading.Event().wait()
following.apply()
link.joined()
print("I am", os.environ["RANK"], os.environ.get("GONE"), os.environ["MINE"], woken.is_set(), flush=True)
link.left("parked")
"""
SECONDS = 60.0


@pytest.fixture
def links() -> RankLinks:
    return RankLinks()


@pytest.fixture
def rank(links: RankLinks, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    words = getattr(request, "param", ())
    variables = {**os.environ, **links.environment(), "RANK": "1", "GONE": "there", "MINE": "own"}
    with subprocess.Popen([sys.executable, "-c", RANK, *words], env=variables) as process:
        while not links.can_stay(process.pid):
            links.look(SECONDS)
        yield process
        process.kill()


def test_it_leaves_and_joins(links: RankLinks, rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert links.left(rank.pid) is None
    links.tell_to_leave(rank.pid)
    assert links.was_told(rank.pid)
    assert links.await_leaving(rank.pid, SECONDS)
    assert links.left(rank.pid) == "broken"
    former = {"RANK": "1", "GONE": "there", "MINE": "former"}
    following = NextGeneration.after(former, {"RANK": "0", "MINE": "former"}, tmp_path / "log")
    assert links.join(rank.pid, following, SECONDS)
    assert not links.was_told(rank.pid)
    links.await_leaving(rank.pid, SECONDS)
    assert (tmp_path / "log").read_text() == "I am 0 None own True\n"  # what the script has set itself stays


@pytest.mark.parametrize("rank", [("parked",)], indirect=True)
def test_one_that_has_parked_is_not_woken(
    links: RankLinks, rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Others may still be in the collective of the save, so its connections stay open."""
    assert links.await_leaving(rank.pid, SECONDS)
    links.tell_to_leave(rank.pid)
    assert links.join(rank.pid, NextGeneration({}, f"{tmp_path}/log"), SECONDS)
    links.await_leaving(rank.pid, SECONDS)
    assert (tmp_path / "log").read_text() == "I am 1 there own False\n"


@pytest.mark.parametrize("rank", [("late",)], indirect=True)
def test_it_cannot_join(links: RankLinks, rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    links.tell_to_leave(rank.pid)
    assert links.await_leaving(rank.pid, SECONDS)
    assert not links.join(rank.pid, NextGeneration({}, f"{tmp_path}/log"), SECONDS)


@pytest.mark.parametrize("rank", [("stuck",)], indirect=True)
def test_it_does_not_leave_in_time(links: RankLinks, rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    links.tell_to_leave(rank.pid)
    assert not links.await_leaving(rank.pid, 0.0)
    assert not links.join(rank.pid, NextGeneration({}, f"{tmp_path}/log"), SECONDS)


@pytest.mark.parametrize("rank", [("out",)], indirect=True)
def test_it_is_out_of_the_function(links: RankLinks, rank: subprocess.Popen[bytes]) -> None:
    links.tell_to_leave(rank.pid)
    assert not links.await_leaving(rank.pid, SECONDS)
    assert not links.can_stay(rank.pid)


def test_it_dies(links: RankLinks, rank: subprocess.Popen[bytes]) -> None:
    rank.kill()
    assert not links.await_leaving(rank.pid, SECONDS)


def test_a_process_that_is_no_rank_changes_nothing(links: RankLinks) -> None:
    assert not links.can_stay(os.getpid())
    assert links.environment()[ENVIRONMENT]
    links.tell_to_leave(os.getpid())
    assert not links.join(os.getpid(), NextGeneration({}, "log"), 0.0)
