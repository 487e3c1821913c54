"""What the history keeps of reports."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_elastic.adapters.host.shared_page import Page
from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members
from airflow_elastic.adapters.records.rank_progress import GenerationProgress, gather, read_reports
from airflow_elastic.core.history.samples import (
    MOST_METRICS,
    controller_values,
    has_moved,
    training_rows,
    training_values,
    usage_rows,
)
from airflow_elastic.core.units import non_finite_word
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.status import Progress, RankReport, WorkerUsage
from tests.support.builders import at_step, spec, story


def ranks(*seconds: float) -> tuple[RankReport, ...]:
    return tuple(RankReport(i, f"node-{i}", 5, 10.0, one) for i, one in enumerate(seconds))


def test_the_slowest_rank_has_a_name() -> None:
    values = training_values(at_step(5, ranks=ranks(0.1, 0.4, 0.2)))
    assert (values["step_seconds"], values["slowest_seconds"], values["slowest_rank"]) == (0.2, 0.4, 1)
    assert training_rows(at_step(5, ranks=ranks(0.1, 0.0))) == {"step_seconds": {"0": 0.1}}


def test_of_ranks_in_lockstep_the_forward_pass_is_kept() -> None:
    """Their step times are the same, whoever is slow."""
    timed = [replace(rank, forward_seconds=0.01 * (rank.rank + 1)) for rank in ranks(0.1, 0.11)]
    assert training_rows(at_step(5, ranks=tuple(timed))) == {"forward_seconds": {"0": 0.01, "1": 0.02}}
    apart = tuple(replace(rank, step_seconds=0.1 * (rank.rank + 1)) for rank in timed)
    assert set(training_rows(at_step(5, ranks=apart))) == {"forward_seconds", "step_seconds"}


def test_before_the_first_step_there_is_no_step() -> None:
    """Ranks that go on from step 500 report step 0 until they have read their checkpoint."""
    told = at_step(0, attached=True)
    (stretch,) = told.stretches
    waiting = replace(told, stretches=(replace(stretch, first_step_at=None),))
    assert "step" not in training_values(waiting)
    assert training_values(told)["step"] == 0


def test_a_report_that_is_repeated_has_not_moved() -> None:
    told = at_step(5, ranks=ranks(0.1))
    assert has_moved(told, None)
    assert not has_moved(replace(told, at=99.0), told)
    assert has_moved(at_step(5, ranks=(replace(ranks(0.1)[0], at=11.0),)), told)


def test_too_many_metrics_are_left_out() -> None:
    values = training_values(at_step(5, metrics={f"m{i}": 1.0 for i in range(1000)}))
    assert sum(name.startswith("metrics.") for name in values) == MOST_METRICS


def test_what_is_not_known_of_a_worker_is_left_out() -> None:
    used = WorkerUsage("node-0", 1.0, "here", (0, 1), cpu=1.5, memory_bytes=100)
    assert usage_rows([used]) == {"cpu": {"node-0": 1.5}, "memory_bytes": {"node-0": 100}}


def test_the_controllers_series_add_up_to_the_wall_time() -> None:
    values = controller_values(story(), None, 60.0)
    assert sum(value for name, value in values.items() if name.startswith("seconds.")) == pytest.approx(60.0)
    assert values["workers"] == values["target_workers"] == 2


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_kept_from_the_rank_to_the_history(tmp_path: Path, odd: float) -> None:
    """On its way it is a word: documents in JSON cannot have it."""
    files = JobFiles(tmp_path)
    prefix = files.node(0) / "g0001-rank-0"
    prefix.parent.mkdir(parents=True)
    page = Page.create(prefix.with_suffix(".page"))
    heartbeat = Heartbeat.__new__(Heartbeat)
    heartbeat.early = lambda: None
    heartbeat.words, heartbeat._note_path = page.words, prefix.with_suffix(".json")
    heartbeat._phases, heartbeat._last_note = (), None
    heartbeat._write_loss(odd)
    heartbeat._write_note({"accuracy": odd, "fine": 1.0})
    run = spec()
    record = JobRecord("j", "/x", 1, run, run.digest, "", "python")
    told = GenerationProgress(Members(1, (0,), 0.0), 0.0, tuple(read_reports(files, 0, 1)))
    plain = json.loads(json.dumps(encode(gather(record, 1, [told])), allow_nan=False))
    progress = decode(Progress, plain)
    assert progress.loss is None
    assert progress.metrics == {"fine": 1.0}
    values = training_values(progress)
    assert (
        non_finite_word(values["loss"]) == non_finite_word(values["metrics.accuracy"]) == non_finite_word(odd)
    )
    heartbeat._write_loss(0.5)
    heartbeat._write_note({"accuracy": 0.9})
    told = GenerationProgress(Members(1, (0,), 0.0), 0.0, tuple(read_reports(files, 0, 1)))
    values = training_values(gather(record, 1, [told]))
    assert (values["loss"], values["metrics.accuracy"]) == (0.5, 0.9)
    page.close()
