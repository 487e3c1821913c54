"""Event files of TensorBoard, read back by TensorBoard's own reader."""

from __future__ import annotations

import logging
import math
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from airflow_elastic.adapters.storage.folder import FolderStore
from airflow_elastic.runtime.agent.reporting import event_files
from airflow_elastic.runtime.agent.reporting.event_files import COPY_SECONDS, EventFiles
from tests.support.machine.machines import Far

START = 1_790_000_000.0


def values(step: int) -> dict[str, float]:
    return {"step": step, "loss": 1.0 / (step + 1), "metrics.accuracy": step / 100, "attempt": 1}


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


def test_each_attempt_has_a_folder_with_its_scalars(tmp_path: Path) -> None:
    board = EventFiles(FolderStore(tmp_path))
    for step in range(5):
        board.add(1, START + step, values(step))
    board.tend()
    for step in range(3, 6):
        board.add(2, START + 10 + step, values(step))
    board.tend(last=True)
    first, second = tmp_path / "tensorboard/attempt-0001", tmp_path / "tensorboard/attempt-0002"
    assert [step for step, _ in scalars(first, "loss")] == [0, 1, 2, 3, 4]
    assert dict(scalars(second, "metrics/accuracy")) == pytest.approx({3: 0.03, 4: 0.04, 5: 0.05})
    tags = EventAccumulator(str(first)).Reload().Tags()["scalars"]
    assert set(tags) == {"loss", "metrics/accuracy"}


def test_what_is_not_a_number_is_written_as_it_is(tmp_path: Path) -> None:
    board = EventFiles(FolderStore(tmp_path))
    board.add(1, START, {"step": 1, "loss": math.nan})
    board.add(1, START + 1, {"step": 2, "loss": math.inf})
    board.tend(last=True)
    nan, inf = (value for _, value in scalars(tmp_path / "tensorboard/attempt-0001", "loss"))
    assert math.isnan(nan)
    assert inf == math.inf


def test_a_service_gets_a_copy_at_most_once_a_minute_and_at_the_end(tmp_path: Path) -> None:
    now = [0.0]
    uploads: list[str] = []

    class Counting(Far):
        def upload(self, key: str, path: Path) -> None:
            uploads.append(key)
            super().upload(key, path)

    board = EventFiles(Counting(str(tmp_path)), lambda: now[0])
    for second in range(600):
        now[0] = float(second)
        board.add(1, START + second, values(second))
        board.tend()
    assert len(uploads) == 600 / COPY_SECONDS
    assert len(set(uploads)) == 1
    board.tend(last=True)
    assert len(scalars(tmp_path / "tensorboard/attempt-0001", "loss")) == 600


def test_files_are_rotated_and_complete_ones_are_not_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_files, "FILE_BYTES", 3000)
    now = [0.0]
    sizes: list[int] = []

    class Counting(Far):
        def upload(self, key: str, path: Path) -> None:
            sizes.append(path.stat().st_size)
            super().upload(key, path)

    board = EventFiles(Counting(str(tmp_path)), lambda: now[0])
    for second in range(300):
        now[0] += COPY_SECONDS
        board.add(1, START + second, values(second))
        board.tend()
    board.tend(last=True)
    files = list((tmp_path / "tensorboard/attempt-0001").iterdir())
    assert len(files) > 5
    assert max(sizes) < 2 * 3000
    assert len(scalars(tmp_path / "tensorboard/attempt-0001", "loss")) == 300


def test_a_run_of_90_days_has_a_bounded_number_of_points(tmp_path: Path) -> None:
    board = EventFiles(FolderStore(tmp_path))
    assert sum(board.add(1, START + second, {"step": second}) for second in range(0, 90 * 86400, 3)) < 30_000


def test_a_missing_package_is_told_once_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    board = EventFiles(FolderStore(tmp_path))
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            board.add(1, START + step, values(step))
            board.tend()
        board.tend(last=True)
    assert [record.getMessage() for record in caplog.records] == [
        "tensorboard is set, but TensorBoard is not installed where this worker runs: "
        "pip install 'airflow-elastic[tensorboard]'"
    ]
