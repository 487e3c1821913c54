"""Folding: whatever is folded when, no minimum and maximum is lost, nothing counts twice, and the result is bounded."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_elastic.core.history import matrices, tables
from airflow_elastic.core.history.fold import cut_of, fold, only, rest_of, whole_minute
from airflow_elastic.core.history.join_conditions import joined_conditions
from airflow_elastic.core.history.recorder import MOST_SERIES, Recorder
from airflow_elastic.core.history.retention import MATRIX, MINUTE, SERIES, plan
from airflow_elastic.core.history.tables import TableBuilder
from airflow_elastic.spec.history import Column, Condition, Matrix, Part, Table, decode_part, encode_part
from tests.support.histories import DAY, USAGE, times, training

START = 1_790_000_000.0 // DAY * DAY

numbers = st.floats() | st.integers(-1000, 1000).map(float)
#: Seconds since the start, with pauses of any length between them.
moments = st.lists(st.integers(0, 7200) | st.integers(0, 90 * 86400), min_size=1, max_size=60).map(sorted)


@st.composite
def samples(draw: st.DrawFn) -> list[tuple[float, float]]:
    return [(START + second, draw(numbers)) for second in draw(moments)]


def table_of(found: Iterable[tuple[float, float]]) -> Table:
    builder = TableBuilder()
    for t, value in found:
        builder.add(t, {"loss": value})
    return builder.table


def part_of(found: Iterable[tuple[float, float]], writer: str = "a", attempt: int = 1) -> Part:
    recorder = Recorder(writer, attempt)
    for t, value in found:
        recorder.add(t, {"loss": value, "attempt": attempt})
        recorder.add_rows("cpu", t, {"node-0": value, "node-1": 1.0})
    return recorder.part(START)


def extremes(table: Table) -> tuple[int, float, float]:
    """How many values there are, the least and the greatest, as text so that NaN equals NaN."""
    column = table.columns["loss"]
    real = [i for i in range(len(column.count)) if column.count[i]]
    low = [column.min[i] for i in real if not math.isnan(column.min[i])]
    high = [column.max[i] for i in real if not math.isnan(column.max[i])]
    return sum(column.count), min(low, default=math.inf), max(high, default=-math.inf)


def expected(found: list[tuple[float, float]]) -> tuple[int, float, float]:
    real = [value for _, value in found if not math.isnan(value)]
    return len(found), min(real, default=math.inf), max(real, default=-math.inf)


def is_well_formed(table: Table) -> bool:
    return list(table.t) == sorted(set(table.t)) and all(
        len(table.t) == len(one.count) == len(one.min) == len(one.max) == len(one.mean)
        for one in table.columns.values()
    )


@given(found=samples())
def test_no_extreme_is_lost_however_old(found: list[tuple[float, float]]) -> None:
    table = tables.joined_with_age([table_of(found)])
    assert is_well_formed(table)
    assert extremes(table) == expected(found)
    column = table.columns["loss"]
    for i, t in enumerate(table.t):
        mine = [value for at, value in found if t <= at and (i + 1 == len(table.t) or at < table.t[i + 1])]
        assert column.count[i] == len(mine)
        real = [value for value in mine if not math.isnan(value)]
        assert not real or (column.min[i], column.max[i]) == (min(real), max(real))
        if len(real) < len(mine):
            assert math.isnan(column.mean[i]), "that there was a NaN is not forgotten"
        elif all(map(math.isfinite, mine)):
            assert column.min[i] <= column.mean[i] <= column.max[i]


@given(found=samples())
@example([(START, 0.0), (START + 1920, 0.0), (START + 466140, 0.0)])  # the first bucket begins before START
def test_buckets_that_are_joined_again_stay(found: list[tuple[float, float]]) -> None:
    table, matrix = table_of(found), part_of(found).matrices["cpu"]
    once, rows = tables.joined_with_age([table]), matrices.joined_with_age([matrix])
    assert tables.joined_with_age([once]).t == once.t
    assert matrices.joined_with_age([rows]).t == rows.t


@given(found=samples(), parts=st.integers(1, 8))
def test_in_pieces_and_at_once_give_the_same_buckets_and_extremes(
    found: list[tuple[float, float]], parts: int
) -> None:
    once = tables.joined_with_age([table_of(found)])
    pieces = Table()
    size = -(-len(found) // parts)
    for i in range(0, len(found), size):
        pieces = tables.joined_with_age([pieces, table_of(found[i : i + size])])
    assert pieces.t == once.t
    a, b = pieces.columns["loss"], once.columns["loss"]
    assert a.count == b.count
    assert [repr(value) for value in a.min] == [repr(value) for value in b.min]
    assert [repr(value) for value in a.max] == [repr(value) for value in b.max]
    for x, y in zip(a.mean, b.mean, strict=True):
        # Rounding may differ: as much as the greatest of the values allows.
        scale = max(map(abs, (value for _, value in found if math.isfinite(value))), default=1.0)
        assert x == pytest.approx(y, rel=1e-9, abs=1e-9 * min(scale, 1e300), nan_ok=True) or scale > 1e300


@given(found=samples())
def test_the_stored_form_keeps_each_number(found: list[tuple[float, float]]) -> None:
    part = part_of(found)
    again = decode_part(encode_part(part))
    assert again.table.t == part.table.t
    for name, column in part.table.columns.items():
        for field in ("count", "min", "max", "mean"):
            assert getattr(again.table.columns[name], field).tobytes() == getattr(column, field).tobytes()
    assert again.matrices["cpu"].mean.tobytes() == part.matrices["cpu"].mean.tobytes()
    assert replace(again, table=part.table, matrices=part.matrices) == part


@given(found=samples(), cuts=st.lists(st.integers(0, 90 * 1440), max_size=5).map(sorted))
@example([(START + second, 0.0) for second in (1, 3, 1900, 3601)], [40])
@settings(max_examples=60)
def test_a_reader_sees_the_same_before_and_after_each_fold(
    found: list[tuple[float, float]], cuts: list[int]
) -> None:
    """At each cut the writer folds; a reader may come between the new archive and the shortened part."""
    archive, whole = Part(), part_of(found)
    before = fold(archive, [whole])
    own = whole
    for cut in (START + minute * MINUTE for minute in cuts):
        archive = fold(archive, [own], {own.writer: cut})
        between = fold(archive, [own])
        own = rest_of(own, cut)
        after = fold(archive, [own])
        for seen in (between, after):
            assert seen.table.t == before.table.t
            assert extremes(seen.table) == extremes(before.table) == expected(found)
            assert seen.matrices["cpu"].t == before.matrices["cpu"].t
            assert seen.matrices["cpu"].count == before.matrices["cpu"].count


@given(early=samples(), late=samples(), folded=st.booleans())
@settings(max_examples=60)
def test_where_two_attempts_overlap_the_later_one_counts(
    early: list[tuple[float, float]], late: list[tuple[float, float]], folded: bool
) -> None:
    first, second = part_of(early, "a", 1), part_of(late, "b", 2)
    began = math.floor(late[0][0])
    archive = fold(Part(), [first], {"a": cut_of(first)}) if folded else Part()
    seen = fold(archive, [first, second])
    kept = [sample for sample in early if math.floor(sample[0]) < began]
    if not folded:
        assert extremes(seen.table) == expected(kept + late)
    attempts = seen.table.columns["attempt"]
    limit = plan(seen.table.t[0], seen.table.t[-1])
    assert all(
        attempts.max[i] == 2
        for i, t in enumerate(seen.table.t)
        if t > limit.bucket(began) and attempts.count[i]
    )


@given(found=samples(), cut=st.integers(0, 90 * 1440))
def test_a_dead_writer_that_comes_back_is_not_counted_twice(
    found: list[tuple[float, float]], cut: int
) -> None:
    """Others have folded all that it had written; then it writes the same again, and more."""
    until = START + cut * MINUTE
    dead = part_of([sample for sample in found if sample[0] < until] or found[:1])
    archive = fold(Part(), [dead], {"a": max(cut_of(dead), until)})
    seen = fold(archive, [part_of(found)])
    assert seen.table.columns["loss"].count.count(0) == 0
    assert extremes(seen.table)[0] == sum(
        1 for i, (t, _) in enumerate(found) if t >= max(cut_of(dead), until) or t < until or i == 0
    )


def test_widths_double_and_each_divides_the_next() -> None:
    for keep in (SERIES, MATRIX):
        widths = [*keep.fine, MINUTE, 2 * MINUTE]
        assert all(b % a == 0 for a, b in pairwise(widths))


@pytest.mark.parametrize("days", [0.001, 0.01, 0.1, 1, 3, 30, 90, 365, 3650])
def test_the_number_of_buckets_is_bounded(days: float) -> None:
    assert len(times(START, START + days * DAY, SERIES)) <= 1815 + 2761 + 2002
    assert len(times(START, START + days * DAY, MATRIX)) <= 121 + 1 + 122
    assert len(times(START, START + 90 * DAY, SERIES)) > 2000


def test_a_run_of_90_days_stays_small() -> None:
    """Measured with random numbers, which are the worst to compress: 0.95 MB with 8 workers, 3.7 MB with 256."""
    sizes = {}
    for workers, ranks in ((8, 8), (256, 1024)):
        archive, recent = training(90, START + 90 * DAY + 3000, workers=workers, ranks=ranks, metrics=4)
        assert len(archive.matrices) == len(USAGE) + 1
        sizes[workers] = (len(encode_part(archive)), len(encode_part(recent)))
    assert sizes[8][0] < 1_500_000
    assert sizes[8][1] < 200_000
    assert sizes[256][0] < 6_000_000
    assert sizes[256][1] < 3_000_000


def test_a_writer_that_cannot_fold_stays_small() -> None:
    recorder = Recorder("a", 1)
    for second in range(20_000):
        recorder.add(START + second, {"loss": float(second)})
        if second % 10 == 0:
            recorder.add_rows("cpu", START + second, {"node-0": 1.0})
    part = recorder.part(START)
    assert len(part.table.t) <= 2401
    assert len(part.matrices["cpu"].t) <= 301
    assert extremes(part.table) == (20_000, 0.0, 19_999.0)


def test_a_script_that_makes_up_names_does_not_fill_the_storage() -> None:
    recorder = Recorder("a", 1)
    for step in range(1000):
        recorder.add(START + step, {"step": step, f"metrics.{step}": 1.0})
    columns = recorder.part(START).table.columns
    assert len(columns) == MOST_SERIES
    assert sum(columns["step"].count) == 1000


@given(jumps=st.lists(st.integers(-100, 100), min_size=1, max_size=40))
def test_a_clock_that_is_set_back_loses_nothing(jumps: list[int]) -> None:
    recorder, t = Recorder("a", 1), START
    for i, jump in enumerate(jumps):
        t += jump
        recorder.add(t, {"loss": float(i)})
        recorder.add_rows("cpu", t, {"node-0": float(i)})
    part = recorder.part(START)
    assert is_well_formed(part.table)
    assert extremes(part.table) == (len(jumps), 0.0, float(len(jumps) - 1))
    assert list(part.matrices["cpu"].t) == sorted(set(part.matrices["cpu"].t))
    assert sum(part.matrices["cpu"].count) == len(jumps)


def test_rows_come_and_go_and_too_many_leave_the_oldest_out() -> None:
    one = Matrix()
    for i, numbers in enumerate((range(76), range(76, 600), range(600, matrices.MOST_ROWS + 76))):
        one = matrices.add(one, START + 10 * i, {f"node-{number}": 1.0 for number in numbers}, 1)
    assert len(one.rows) == matrices.MOST_ROWS
    assert one.rows[0] == "node-76"
    assert one.rows[-1] == f"node-{matrices.MOST_ROWS + 75}"


def test_the_mean_of_a_cell_is_over_the_times_that_had_a_value() -> None:
    one = Matrix()
    for value in ({"a": 1.0}, {"a": 3.0, "b": 10.0}, {"b": 20.0}):
        one = matrices.add(one, START, value, 1)
    mean = dict(zip(one.rows, one.mean, strict=True))
    assert mean["a"] == pytest.approx(2.0)
    assert one.max.tolist() == [3.0, 20.0]


def test_conditions_that_several_controllers_saw_are_one() -> None:
    seen = [
        Condition("waiting", 10.0, 60.0, "queued", open=True),
        Condition("waiting", 10.0, 40.0, "queued", open=True),
        Condition("waiting", 100.0, 130.0, "queued"),
        Condition("waiting", 900.0, 950.0, "queued"),
        Condition("straggler", 20.0, 30.0, "rank 1", ranks=(1,)),
    ]
    assert joined_conditions(reversed(seen)) == (
        Condition("waiting", 10.0, 130.0, "queued"),
        Condition("straggler", 20.0, 30.0, "rank 1", ranks=(1,)),
        Condition("waiting", 900.0, 950.0, "queued"),
    )
    assert joined_conditions([*joined_conditions(seen), *seen]) == joined_conditions(seen)


def test_a_cut_is_a_whole_minute_after_everything() -> None:
    part = part_of([(START + 61.5, 1.0)])
    assert cut_of(part) == START + 120.0
    assert whole_minute(START + 61.5) == START + 60.0
    assert rest_of(part, cut_of(part)).table.t.tolist() == []


@given(st.lists(numbers, min_size=1, max_size=12), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_neighbours_joined_at_once_are_as_if_joined_one_by_one(
    values: list[float], counts: list[int]
) -> None:
    """Also if some of them have no value, or one that is not finite."""
    filled = counts[: len(values)]
    column = Column(
        array("I", filled),
        array("d", [value if count else 0.0 for value, count in zip(values, filled, strict=True)]),
        array(
            "d", [value + abs(value) if count else 0.0 for value, count in zip(values, filled, strict=True)]
        ),
        array("d", [value if count else 0.0 for value, count in zip(values, filled, strict=True)]),
    )
    table = Table(array("d", map(float, range(len(values)))), {"loss": column})
    at_once = tables.join([table], lambda t: 0.0).columns["loss"]
    one: tuple[int, float, float, float] | None = None
    for i, count in enumerate(filled):
        if count:
            bucket = (count, column.min[i], column.max[i], column.mean[i])
            one = bucket if one is None else tables.combine(one, bucket)
    assert at_once.count[0] == (one[0] if one else 0)
    if one:
        found = (at_once.min[0], at_once.max[0], at_once.mean[0])
        assert found == pytest.approx(one[1:], rel=1e-9, abs=1e-6, nan_ok=True)


def test_what_is_left_out_does_not_change_the_rest() -> None:
    archive, recent = training(30, START + 30 * DAY + 1234)
    whole = fold(archive, [recent])
    some = fold(only(archive, "loss".__eq__, "cpu"), [only(recent, "loss".__eq__, "cpu")])
    assert set(some.table.columns) == {"loss", "attempt"}
    assert some.table.columns["loss"] == whole.table.columns["loss"]
    assert some.table.t == whole.table.t
    assert some.matrices == {"cpu": whole.matrices["cpu"]}
