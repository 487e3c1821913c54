"""Units for people."""

from __future__ import annotations

import pytest

from airflow_elastic.core.units import size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (635_000, "635 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (12_340_000, "12.3 MB"),
        (3_200_000_000, "3.2 GB"),
        (10_400_000_000, "10.4 GB"),
        (5_000_000_000_000_000, "5000 TB"),
    ],
)
def test_bytes_have_the_unit_that_makes_them_readable(count: int, text: str) -> None:
    assert size(count) == text
