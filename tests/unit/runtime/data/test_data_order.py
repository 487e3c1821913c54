"""A position is of an order of samples: in the middle of an epoch another order is refused, at its end it is fine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_elastic.runtime.checkpoint.save.save import ORDER, Position
from airflow_elastic.runtime.collectives.process_group import Collectives
from airflow_elastic.runtime.data.share import DataShare
from airflow_elastic.runtime.data.stream import ShardedStream
from airflow_elastic.spec.errors import InvalidInput
from tests.support.training.saving import objects, restorer, save

State = dict[str, Any]


def stream_of(shards: Sequence[Any], lanes: int = 2) -> ShardedStream:
    """Each shard has three samples, which are its name and their numbers."""

    def read(shard: Any, offset: int) -> Iterator[str]:
        return (f"{shard}{number}" for number in range(offset, 3))

    return ShardedStream(shards, read, lanes=lanes)


def life(
    data: Any, steps: int, before: tuple[Position, State, State] | None = None, **order: Any
) -> tuple[list[Any], tuple[Position, State, State]]:
    """What is consumed by a run that goes on from what was saved before, and what it saves."""
    feed = DataShare(Collectives(0, 1, None), None, lambda steps: None)
    if before is not None:
        feed.position = before[0]
        feed.load_state_dict(before[1])
        if isinstance(data, ShardedStream):
            data.load_state_dict(before[2])
    settings: dict[str, Any] = {
        "global_batch": 2,
        "epochs": 2,
        "seed": 0,
        "shuffle": True,
        "micro_batch": None,
    }
    settings |= {"even_pieces": False, "dynamic": False, "options": {"collate_fn": list}, **order}
    seen: list[Any] = []
    batches = feed.batches(data, **settings)
    for step in range(1, steps + 1):
        seen += next(batches)
        feed.stepped(step)
    stream = data.state_dict() if isinstance(data, ShardedStream) else {}
    kept: tuple[State, State] = json.loads(json.dumps([feed.state_dict(), stream]))
    return seen, (feed.position, *kept)


@pytest.mark.parametrize(
    ("data", "order", "told"),
    [
        (
            range(11),
            {},
            r"4 samples of epoch 0 .* order .*\(10 samples, seed 0\)\. The script now has \(11 samples, seed 0\)",
        ),
        (range(9), {}, "has .9 samples"),
        (range(10), {"seed": 1}, r"has \(10 samples, seed 1\)"),
        (range(10), {"shuffle": False}, r"has \(10 samples, not shuffled\)"),
        (stream_of("ab"), {}, r"has \(a stream, seed 0\)"),
    ],
    ids=["longer", "shorter", "another seed", "not shuffled", "a stream"],
)
def test_in_the_middle_of_an_epoch_another_order_is_refused(data: Any, order: State, told: str) -> None:
    position, kept, _ = life(range(10), 2)[1]
    with pytest.raises(InvalidInput, match=f"{told}.*another URI"):
        life(data, 1, (position, kept, stream_of("ab").state_dict()), **order)


def test_the_same_order_in_other_batches_is_gone_on_with() -> None:
    begun, kept = life(range(10), 2)
    rest, _ = life(range(10), 2, kept, global_batch=3)
    assert sorted(begun + rest) == list(range(10))
    begun, kept = life(range(10), 2, shuffle=False)
    assert life(range(10), 1, kept, shuffle=False, seed=8)[0] == [4, 5]


def test_of_a_checkpoint_that_tells_no_order_everything_is_taken() -> None:
    position, *_ = life(range(10), 2)[1]
    assert len(life(range(11), 1, (position, {"order": None, "over": False}, {}))[0]) == 2


@pytest.mark.parametrize("length", [9, 10, 15])
def test_when_an_epoch_is_over_data_may_have_changed(length: int) -> None:
    _, kept = life(range(10), 5)
    seen, (position, *_) = life(range(length), -(-length // 2), kept, seed=4)
    assert sorted(seen) == list(range(length))
    assert (position.epoch, position.offset, position.samples) == (1, length, 10 + length)


def test_a_loader_that_has_nothing_more_to_give_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Epochs are counted from the beginning of the run, and not from where a loader is made."""
    feed = DataShare(Collectives(0, 1, None), None, lambda steps: None)
    settings: dict[str, Any] = {"global_batch": 2, "seed": 5, "shuffle": True, "micro_batch": None}
    settings |= {"even_pieces": False, "dynamic": False, "options": {}}

    def train(epochs: int) -> int:
        given = 0
        for given, _ in enumerate(feed.batches(range(4), epochs=epochs, **settings), 1):  # type: ignore[arg-type]
            feed.stepped(given)
        return given

    assert [train(1), train(2)] == [2, 2]
    assert not caplog.messages
    assert train(2) == 0
    assert "2 epochs are over, and epochs=2 is the number of all epochs of the run" in caplog.text
    caplog.clear()
    again = DataShare(Collectives(0, 1, None), None, lambda steps: None)
    again.position = feed.position
    again.load_state_dict(feed.state_dict())
    feed = again
    assert train(2) == 0
    assert not caplog.messages, "a run that was restarted at its end"


def test_data_of_which_nothing_is_left_to_be_given_is_not_asked_for_its_order() -> None:
    _, kept = life(range(10), 7)
    feed = DataShare(Collectives(0, 1, None), None, lambda steps: None)
    feed.position = kept[0]
    feed.load_state_dict(kept[1])
    settings: dict[str, Any] = {"global_batch": 2, "seed": 5, "shuffle": True, "micro_batch": None}
    settings |= {"even_pieces": False, "dynamic": False, "options": {}}
    assert list(feed.batches(range(3), epochs=1, **settings)) == []  # type: ignore[arg-type]
    assert len(life(range(10), 3, kept)[0]) == 6


@pytest.mark.parametrize(
    "shards", ["xya", "acb", "abcd", "ab"], ids=["others", "in another order", "more", "fewer"]
)
def test_in_the_middle_of_an_epoch_other_shards_are_refused(shards: str) -> None:
    _, kept = life(stream_of("abc"), 2)
    with pytest.raises(
        InvalidInput, match=r"in the middle of epoch 0 of 3 shards in 2 lanes \(\w+\)\. The script has"
    ):
        life(stream_of(shards), 1, kept)
    with pytest.raises(InvalidInput, match=r"in 2 lanes .* 3 shards in 3 lanes"):
        life(stream_of("abc", 3), 1, kept)
    with pytest.raises(InvalidInput, match="a stream, seed 0"):
        life(stream_of("abc"), 1, kept, seed=1)


@pytest.mark.parametrize(("shards", "lanes"), [("xya", 2), ("abcde", 4), ("ab", 2)])
@pytest.mark.parametrize("steps", [0, 5], ids=["at its beginning", "at its end"])
def test_between_epochs_other_shards_are_taken(steps: int, shards: str, lanes: int) -> None:
    _, kept = life(stream_of("abc"), steps)
    seen, _ = life(stream_of(shards, lanes), -(-3 * len(shards) // 2), kept, seed=3)
    assert sorted(seen) == sorted(f"{shard}{number}" for shard in shards for number in range(3))


def test_a_stream_of_a_checkpoint_that_tells_only_how_many_shards_is_gone_on_with() -> None:
    position, order, state = life(stream_of("abc"), 2)[1]
    del state["digest"]
    assert len(life(stream_of("xyz"), 1, (position, order, state))[0]) == 2
    with pytest.raises(InvalidInput, match="script has 4 shards in 2"):
        life(stream_of("wxyz"), 1, (position, order, state))


def test_shards_that_only_say_where_they_are_in_memory_are_known_again() -> None:
    _, kept = life(stream_of([object(), object()]), 1)
    assert len(life(stream_of([(one := object()), one]), 1, kept)[0]) == 2


def feed_at(position: Position) -> DataShare:
    feed = DataShare(Collectives(0, 1, None), None, lambda steps: None)
    feed.position = position
    return feed


def test_the_order_is_part_of_a_checkpoint_and_older_ones_load_without_it(tmp_path: Path) -> None:
    _, (position, kept, _) = life(range(10), 2)
    feed, again, older = (feed_at(position) for _ in range(3))
    feed.load_state_dict(kept)
    save(tmp_path / "new", 5, replace(objects(1), others={ORDER: feed}))
    save(tmp_path / "old", 5, replace(objects(1), others={}))
    restorer(tmp_path / "new").restore(replace(objects(2), others={ORDER: again}))
    restorer(tmp_path / "old").restore(replace(objects(2), others={ORDER: older}))
    assert again.state_dict() == feed.state_dict() == kept
    assert older.state_dict() == {"order": None, "over": False, "replaced": []}
