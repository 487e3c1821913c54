"""Files of a job on a disk that is full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_elastic.adapters.records.job_files import JobFiles
from tests.support.machine.small_disk import fill_up, small_disk


@pytest.mark.parametrize("write", [JobFiles.write, JobFiles.create])
def test_a_document_that_has_no_room_leaves_nothing(
    write: Callable[[JobFiles, str, object], object], tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        files = JobFiles(disk)
        fill_up(disk / "ballast")
        with pytest.raises(OSError, match="No space left"):
            write(files, "usage.json", {"key": "x" * 100})
        assert [path.name for path in disk.iterdir()] == ["ballast"]
        (disk / "ballast").unlink()
        write(files, "usage.json", {"key": "value"})
        assert (disk / "usage.json").read_text() == '{"key": "value"}'


def test_a_document_that_is_not_replaced_stays_as_it_was(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        files = JobFiles(disk)
        files.write("usage.json", {"key": "value"})
        fill_up(disk / "ballast")
        with pytest.raises(OSError, match="No space left"):
            files.write("usage.json", {"key": "other"})
        assert (disk / "usage.json").read_text() == '{"key": "value"}'
        assert len(list(disk.iterdir())) == 2
