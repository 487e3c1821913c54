"""What workers wait for that have not started yet is told, and nothing is restarted meanwhile."""

from __future__ import annotations

import asyncio
import json
from io import StringIO
from pathlib import Path

from rich.console import Console

from airflow_elastic.adapters.records.reports import write_progress
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.cli.drive.progress_lines import ProgressLines, progress_line
from airflow_elastic.control.runs import Run
from airflow_elastic.control.waits import WORDS_SECONDS, Waits
from airflow_elastic.spec import events as ev
from airflow_elastic.spec.run import Health
from airflow_elastic.spec.status import JobStatus, Wait, Waiting
from airflow_elastic.testing.fake_engine import FakeEngine
from tests.support.builders import at_step, job, lost, story, worker
from tests.support.driving import Listener, controlled
from tests.support.machine.patience import until_async


def shown(run: Run) -> tuple[object, object]:
    status = run.status()
    return status["state"], status["waiting"]


async def test_what_workers_wait_for_is_told_and_published_but_not_journaled(tmp_path: Path) -> None:
    engine, heard = FakeEngine(), Listener()
    async with controlled(tmp_path / "run", engine, heard, engine_options={"waiting": "queued"}) as run:
        await until_async(lambda: heard.told, "the queue")
        name = run.state.attempt.job or ""
        queued = {"state": "queued", "workers": 2, "of": 2, "reason": None}
        await until_async(lambda: shown(run) == ("queued", queued), "the word of it")
        engine.hold(name, Waiting.CAPACITY, "0/3 nodes are available", workers=1)
        await until_async(lambda: len(heard.told) == 2, "the wait for capacity")
        short = {
            "state": "waiting for capacity",
            "workers": 1,
            "of": 2,
            "reason": "0/3 nodes are available",
        }
        await until_async(lambda: shown(run) == ("waiting for capacity", short), "the word of it")
        engine.hold(
            name, Waiting.CAPACITY, "0/4 nodes are available", workers=1
        )  # other words: not news so soon
        looks = heard.looks
        await until_async(lambda: heard.looks > looks + 2, "a look around")
        engine.release(name)
        await until_async(lambda: len(heard.told) == 3, "the workers")
        await until_async(lambda: shown(run) == ("running", None), "the word of it")
        state = run.state
        assert (state.label, len(state.attempts), state.restarts_used) == ("running", 1, 0)
        journal = b"".join(run.store.get(entry.key) or b"" for entry in run.store.list("journal/"))
        assert b"capacity" not in journal
        engine.finish(name)
        await until_async(lambda: run.state.ended, "the end")
        assert shown(run) == ("succeeded", None)
    assert heard.told == [
        "attempt 1: all 2 workers are queued",
        "attempt 1: 1 of 2 workers waits for capacity: 0/3 nodes are available",
        "attempt 1: all 2 workers run",
    ]


async def test_nothing_is_restarted_while_workers_wait(tmp_path: Path) -> None:
    """Ranks stand still for workers of a scale step that have no machine yet: that is no hang."""
    engine, heard = FakeEngine(), Listener()
    health = Health(no_progress_seconds=0.3, start_seconds=0.3)
    async with controlled(tmp_path / "run", engine, heard, health=health) as run:
        await until_async(lambda: run.state.attempt.job, "the workers")
        engine.hold(run.state.attempt.job or "", Waiting.CAPACITY, workers=1)
        await until_async(lambda: heard.told, "the wait")
        write_progress(run.store, at_step(7, moved_at=1.0))  # half a century ago
        await asyncio.sleep(1.0)
        assert (len(run.state.attempts), run.state.label) == (1, "running")
        engine.release(run.state.attempt.job or "")
        await until_async(lambda: len(run.state.attempts) == 2, "the hang to be seen")
        failure = run.state.attempts[0].failure
        assert failure is not None
        assert failure.reason.endswith(" s since step 7"), "nobody was there to be asked where ranks stand"


async def test_what_a_controller_wrote_long_ago_is_not_believed(tmp_path: Path) -> None:
    engine, heard = FakeEngine(), Listener()
    async with controlled(tmp_path / "run", engine, heard, engine_options={"waiting": "queued"}) as run:
        await until_async(lambda: shown(run)[0] == "queued", "the queue")
    store, written = run.store, json.loads(run.store.get("status.json") or b"")
    for other in (
        {**written, "at": written["at"] - 3600},
        {**written, "attempts": [{**written["attempts"][0], "number": 7}]},
        {**written, "waiting": {"state": "of another release"}},
        {key: value for key, value in written.items() if key != "waiting"},
        "nonsense",
    ):
        store.put("status.json", json.dumps(other).encode())
        assert shown(run) == ("running", None)


def test_a_change_of_words_is_news_once_a_minute_and_a_change_of_state_at_once() -> None:
    clock = [1000.0]
    waits = Waits(lambda: clock[0])

    def pending(state: Waiting | None, reason: str = "") -> JobStatus:
        return job(worker("pending", waiting=state, reason=reason))

    assert not waits.news(job(worker("running"))), "a start that nothing held up is no news"
    assert not waits.news(pending(None))
    assert waits.news(pending(Waiting.CAPACITY, "0/3"))
    assert not waits.news(pending(Waiting.CAPACITY, "0/3"))
    assert not waits.news(pending(Waiting.CAPACITY, "0/4"))
    clock[0] += WORDS_SECONDS
    assert not waits.news(pending(Waiting.CAPACITY, "0/3"))
    assert waits.news(pending(Waiting.CAPACITY, "0/4"))
    assert waits.news(pending(Waiting.PULLING))
    assert not waits.news(pending(None)), "it may start, it may not"
    assert not waits.news(job(worker("lost")))
    assert waits.news(job(worker("running")))
    assert not waits.news(job(worker("running")))


def test_until_the_engine_has_spoken_workers_may_be_waiting() -> None:
    """A controller that takes a run over must not take the wait that it has not seen yet for a hang."""
    waits = Waits()
    assert waits.last_at(None, 50.0) == 50.0
    assert waits.last_at(job(worker("running")), 51.0) == 0.0
    assert waits.last_at(job(worker("pending", waiting=Waiting.PULLING)), 52.0) == 52.0
    assert waits.last_at(job(worker("running")), 60.0) == 52.0


def test_the_line_of_a_run_names_what_it_waits_for() -> None:
    state = story(ev.AttemptSubmitted(1.0, 1, "a1"))
    room = Wait(Waiting.CAPACITY, 1, 2, "0/3 nodes are available")
    assert progress_line(state, None, room) == (
        "waiting for capacity · 1 of 2 workers · attempt 1 · 0/3 nodes are available"
    )
    assert progress_line(state, None, Wait(Waiting.QUEUED, 2, 2)) == "queued · all 2 workers · attempt 1"
    assert progress_line(state, at_step(7), room) == (
        "running · 2 workers · step 7 · attempt 1 · "
        "1 of 2 workers waits for capacity: 0/3 nodes are available"
    )


def test_the_story_tells_what_workers_wait_for_and_forgets_it_with_the_attempt(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    tale = ProgressLines(console, open_store(str(tmp_path)))
    live = story(ev.AttemptSubmitted(1.0, 1, "a1"))
    held = job(worker("pending", waiting=Waiting.QUEUED))
    tale.on_waiting(live, held)
    assert tale._line.plain.startswith("queued")
    again = ev.AttemptSubmitted(9.0, 2, "a2")
    following = story(
        ev.AttemptSubmitted(1.0, 1, "a1"), ev.WorkersEnded(2.0, 1, lost()), ev.AttemptGone(3.0, 1), again
    )
    tale.on_event(again, live, following)
    assert tale._line.plain.startswith("running")
    tale.on_waiting(following, job(worker("running"), worker("running", name="node-0")))
    told = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert told[0].endswith("  attempt 1: its worker is queued")
    assert told[-1].endswith("  attempt 2: all 2 workers run")
