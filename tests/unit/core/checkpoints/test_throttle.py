"""Saves are sent as fast as training keeps its speed: against trainings that feel what is sent beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.core.checkpoints.throttle import FELT, Measurement, Throttle
from airflow_elastic.runtime.checkpoint.save.save import BREAKPOINT, Position
from airflow_elastic.runtime.tiers import shared_memory
from airflow_elastic.runtime.tiers.disk.writer import DiskWriter
from airflow_elastic.runtime.tiers.shared_memory import DISK, MEMORY
from airflow_elastic.runtime.tiers.storage.throttle import SendThrottle
from airflow_elastic.spec import layout
from tests.support.machine.machines import Machines, save
from tests.support.machine.patience import PATIENCE_SECONDS, until
from tests.support.training.saving import SavingWorker, objects

MB = 1_000_000
PART = 16 * MB


class Training:
    """Steps of `step` seconds, which are longer by the share `felt` where the network sends all that it can.

    What is sent is sent in parts, each begun when the throttle lets it. As a rank does, it tells of whole steps.
    """

    def __init__(self, *, step: float = 0.1, felt: float = 0.2, network: float = 500.0 * MB) -> None:
        self.throttle, self.step, self.felt, self.network = Throttle(), step, felt, network
        self.at = self.steps = self.told = 0.0
        self.sent = 0
        self.losses: list[float] = []

    def look(self, who: str = "rank 0") -> Measurement:
        return Measurement(who, self.at, int(self.steps), self.told, self.sent)

    def alone(self, seconds: float) -> None:
        self._train(seconds, self.step)

    def _train(self, seconds: float, step: float) -> None:
        self.at += seconds
        self.steps += seconds / step
        self.told = self.at - min(seconds, (self.steps - int(self.steps)) * step)

    def send(self, size: int, within: float | None = None) -> float:
        """Returns how long it took."""
        self.throttle.begin(self.look(), size, within)
        began, before, end = self.at, self.steps, self.sent + size
        while self.sent < end:
            rate = min(self.throttle.rate or self.network, self.network)
            self._train(PART / rate, self.step * (1 + self.felt * rate / self.network))
            self.sent += PART
            self.throttle.sending(self.look())
        self.throttle.end(self.look())
        took = self.at - began
        self.losses.append(1 - (self.steps - before) * self.step / took)
        return took

    def save(self, times: int, size: int, *, every: float) -> None:
        """Train so many seconds, and send; again and again."""
        for _ in range(times):
            self.alone(every)
            self.send(size)


@given(st.floats(0.005, 0.2), st.floats(0.0, 1.5), st.floats(50.0, 2000.0))
def test_training_keeps_its_speed(step: float, felt: float, network: float) -> None:
    training = Training(step=step, felt=felt, network=network * MB)
    training.send(PART)
    for _ in range(3):
        training.alone(30.0)
        took = training.send(PART * 1000)
        assert took < 11 * PART * 1000 / training.network  # never slower than a tenth
    assert training.losses[-1] <= max(FELT, felt * 0.11) + 1e-9


def test_steps_that_are_longer_than_a_save_takes_are_judged_over_several_saves() -> None:
    training = Training(step=2.0, felt=0.5)
    training.save(30, PART * 100, every=30.0)
    assert training.throttle.rate is not None


def test_the_first_save_is_judged_by_the_steps_before_it() -> None:
    training = Training(felt=0.5)
    training.alone(30.0)
    training.send(PART * 500)
    assert training.throttle.rate is not None
    assert training.losses == [pytest.approx(0.05, abs=0.03)]


def test_how_long_it_would_take_with_nothing_held_back_is_known() -> None:
    training = Training(felt=0.5)
    training.alone(30.0)
    size, seconds = PART * 500, 500.0
    assert training.throttle.at_best(size, seconds) == seconds, "nothing has been sent yet"
    took = training.send(size)
    assert training.throttle.rate is not None
    best = size / training.network
    assert training.throttle.at_best(size, took) == pytest.approx(best, rel=0.2)
    assert took > 3 * best
    assert training.throttle.at_best(size, best / 2) == best / 2


def test_what_leads_up_to_the_first_step_does_not_count() -> None:
    throttle = Throttle()
    throttle.begin(Measurement("rank 0", 100.0, 1020.0, 2.0, 0, first=1000.0), PART, None)
    throttle.sending(Measurement("rank 0", 104.0, 1040.0, 6.0, 4 * PART, first=1000.0))
    assert throttle.rate == pytest.approx(PART * 0.2), "steps take twice as long"


def test_what_is_not_felt_is_not_held_back() -> None:
    training = Training(felt=0.03)
    training.save(4, PART * 500, every=5.0)
    assert training.throttle.rate is None


def test_it_goes_faster_again_when_it_is_not_felt_any_more() -> None:
    training = Training(felt=0.5)
    training.save(2, PART * 500, every=5.0)
    assert training.throttle.rate is not None
    training.felt = 0.0
    training.save(3, PART * 500, every=5.0)
    assert training.throttle.rate is None


def test_a_save_is_there_before_the_next_one_is_due() -> None:
    training = Training(felt=0.5)
    for _ in range(3):
        training.alone(5.0)
        free = training.send(PART * 500)
    assert free > 40
    training.alone(5.0)
    assert training.send(PART * 500, within=20.0) < 25.0
    training.alone(5.0)
    assert training.send(PART * 500) > 40, "what was learnt is not forgotten"


def test_another_training_is_not_held_back_for_what_the_one_before_felt() -> None:
    """Of other ranks nobody knows how fast they are alone."""
    throttle = Throttle()
    throttle.end(Measurement("rank 0", 0.0, 0, 0.0, 0))
    throttle.begin(Measurement("rank 0", 10.0, 100, 10.0, 0), PART, None)
    throttle.end(Measurement("rank 0", 20.0, 200, 20.0, PART))
    throttle.begin(Measurement("another", 30.0, 10, 30.0, PART), PART, None)
    throttle.sending(Measurement("another", 40.0, 20, 60.0, 2 * PART))
    assert throttle.rate is None


def test_nor_is_it_held_back_as_the_one_before_was() -> None:
    training = Training(felt=0.5)
    training.save(2, PART * 500, every=5.0)
    assert training.throttle.rate is not None
    training.throttle.begin(training.look("another"), PART, None)
    assert training.throttle.rate is None


def test_beside_another_training_what_has_begun_before_is_not_held_back() -> None:
    training = Training(felt=0.5)
    training.save(2, PART * 500, every=5.0)
    throttle = training.throttle
    throttle.begin(training.look(), PART * 500, None)
    assert throttle.rate_beside(training.look()) == throttle.rate is not None
    assert throttle.rate_beside(training.look("another")) is None
    assert throttle.rate_beside(None) is None, "it is over"
    throttle.sending(training.look("another"))
    assert throttle.rate is None, "what was learnt holds no more"


def test_training_that_stands_still_is_not_spared() -> None:
    """Its ranks may hang: what they have saved is to be there soon."""
    training = Training(felt=0.5, step=1.0)
    training.save(2, PART * 500, every=30.0)
    throttle = training.throttle
    throttle.begin(training.look(), PART * 500, None)
    rate = throttle.rate
    assert rate is not None
    for seconds, held in ((0.0, True), (4.0, True), (2.0, False)):
        training.at += seconds
        assert throttle.rate_beside(training.look()) == (rate if held else None)
    training.alone(1.0)
    assert throttle.rate_beside(training.look()) == rate


@pytest.mark.parametrize("connections", [1, 8, 32])
def test_parts_that_are_on_their_way_count(
    connections: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a network would be taken for that much slower, and nothing held it back from being that slow for good."""
    words, now = Page.create(tmp_path / "rank-0.page").words, 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    throttling = SendThrottle(lambda: [tmp_path / "rank-0.page"])

    def train(seconds: float, step: float) -> None:
        nonlocal now
        now += seconds
        words[shared_page.STEP] += seconds / step
        words[shared_page.STEPPING] += seconds

    train(10.0, 0.1)
    with throttling.sending(PART * connections, now), ExitStack() as parts:
        for _ in range(connections):
            parts.enter_context(throttling.pace(PART))
        train(2.0, 0.2)  # all of them come at about the same time
    assert throttling.at_best(PART * connections, 1e9) <= 2 * 2.0


@dataclass
class Felt:
    """A throttle that holds back, as the rank of this page feels what is sent."""

    path: Path
    words: memoryview[float]
    throttling: SendThrottle
    wait: Callable[[float], None]


@pytest.fixture
def felt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Felt:
    words, now = Page.create(tmp_path / "rank-0.page").words, 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)  # stands still from here on
    throttling = SendThrottle(lambda: [tmp_path / "rank-0.page"])

    def wait(seconds: float) -> None:
        nonlocal now
        now += seconds

    def train(step: float) -> None:
        wait(10.0)
        words[shared_page.STEP] += 10.0 / step
        words[shared_page.STEPPING] += 10.0

    for _ in range(2):
        train(0.1)
        with throttling.sending(PART, now), throttling.pace(PART):
            train(0.2)
    return Felt(tmp_path / "rank-0.page", words, throttling, wait)


def sending(throttling: SendThrottle, parts: int) -> tuple[threading.Thread, threading.Event]:
    done = threading.Event()

    def send() -> None:
        for _ in range(parts):
            with throttling.pace(PART):
                pass
        done.set()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    return sender, done


@pytest.mark.parametrize(
    "word", [None, shared_page.WAITING, shared_page.PARK, shared_page.PARKED, shared_page.FINISHED]
)
def test_whoever_waits_for_it_lets_it_go_as_fast_as_it_can(felt: Felt, word: int | None) -> None:
    sender, done = sending(felt.throttling, 1000)
    assert not done.wait(0.2)
    with felt.throttling.lifted() if word is None else nullcontext():
        if word is not None:
            felt.words[word] = 1.0
        sender.join(30.0)
        assert done.is_set()


@pytest.mark.parametrize("how", ["they have ended", "they do no step"])
def test_without_ranks_that_train_nothing_is_held_back(felt: Felt, how: str) -> None:
    sender, done = sending(felt.throttling, 1000)
    assert not done.wait(0.2)
    if how == "they have ended":
        felt.path.unlink()
    else:
        felt.wait(10.0)
    sender.join(30.0)
    assert done.is_set()


def test_what_went_fast_is_not_waited_for_afterwards(felt: Felt) -> None:
    with felt.throttling.lifted():
        sending(felt.throttling, 1000)[0].join(30.0)
    sender, done = sending(felt.throttling, 1)
    sender.join(30.0)
    assert done.is_set()


def test_turns_that_nobody_has_waited_for_hold_nothing_up(felt: Felt) -> None:
    waiting = [sending(felt.throttling, 1) for _ in range(8)]
    assert not waiting[-1][1].wait(0.2)
    with felt.throttling.lifted():
        for sender, _ in waiting:
            sender.join(30.0)
    sender, done = sending(felt.throttling, 1)
    sender.join(5.0)
    assert done.is_set()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what has waited for its turn."""
    seen: list[int] = []

    @contextmanager
    def pace(throttling: SendThrottle, size: int) -> Iterator[None]:
        seen.append(size)
        yield

    monkeypatch.setattr(SendThrottle, "pace", pace)
    return seen


def test_what_goes_to_a_folder_is_held_back_too(tmp_path: Path, parts: list[int]) -> None:
    """It may be another machine's."""
    worker = SavingWorker(str(tmp_path / "run"))
    worker.saver.save(objects(1), 1, Position(), reason="steps", metrics={})
    worker.persister.write_new()
    (file,) = (tmp_path / "run").glob("checkpoints/data/*/*.bin")
    assert parts == [file.stat().st_size]


def test_so_is_what_goes_to_the_workers_disk(tmp_path: Path, parts: list[int]) -> None:
    """Its processors and its memory are what training has."""
    machines = Machines(tmp_path, 1)
    save(machines.attempt(1, on=(0,)), 2, seed=2)
    (file,) = machines.folders[0].rglob("rank-*.bin")
    assert parts == [file.stat().st_size]


@pytest.mark.parametrize("who", ["the next attempt", "the end"])
def test_whoever_waits_for_the_disk_lets_it_go_as_fast_as_it_can(
    who: str, felt: Felt, tmp_path: Path
) -> None:
    machines = Machines(tmp_path, 1)
    (worker,) = machines.attempt(1, on=(0,))
    disk = worker.node.disk
    assert disk is not None
    disk._throttling = felt.throttling
    with felt.throttling.pace(PART):
        pass  # the next part has to wait, for ever: the clock stands still
    writer = DiskWriter(worker.node, disk)
    writer.start()
    assert worker.saver.save(objects(1), 2, Position(), reason=DISK, metrics={})
    writer.news()
    until(disk._lock.locked, "the disk to be written to")
    assert machines.files() == []
    if who == "the end":
        writer.finish(lambda: False, done=False)
    else:
        disk.tidy([layout.checkpoint_data(2, 1, 1)])
    assert len(machines.files()) == 1
    assert writer.stop()


def test_a_rank_that_finds_no_place_says_so(tmp_path: Path) -> None:
    """All of its places are being read: by what goes to its disk, for example."""
    worker = SavingWorker(str(tmp_path / "run"))
    for step in (1, 2):
        assert worker.saver.save(objects(1), step, Position(), reason=MEMORY, metrics={})
    reading = [shared_memory.held(worker.node.slots.opened_again(), (1, step)) for step in (1, 2)]
    args = {"reason": BREAKPOINT, "metrics": {}}
    saving = threading.Thread(
        target=worker.saver.save, args=(objects(1), 3, Position()), kwargs=args, daemon=True
    )
    saving.start()
    until(lambda: worker.words[shared_page.WAITING] == shared_page.ENDING, "the rank to wait")
    for slot, _ in reading[0]:
        slot.release()
    saving.join(PATIENCE_SECONDS)
    assert shared_memory.common(worker.node.slots.of) == [(1, 2), (1, 3)]
    assert worker.words[shared_page.WAITING] == 0.0
