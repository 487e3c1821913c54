"""Quantities are read as Kubernetes reads them (`resource.ParseQuantity`)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from airflow_elastic.engines.quantities import is_quantity, number_of, times, written


@pytest.mark.parametrize(
    ("amount", "number"),
    [
        *(
            ("4", "4"),
            ("500m", "0.5"),
            ("8Gi", str(8 * 2**30)),
            ("1.5Gi", str(3 * 2**29)),
            (".5", "0.5"),
            ("5.", "5"),
        ),
        *(
            ("+1", "1"),
            ("1e9", "1000000000"),
            ("12E8", "1200000000"),
            ("1E", "1" + "0" * 18),
            ("1e-3", "0.001"),
        ),
        *(
            ("500000u", "0.5"),
            ("3n", "0.000000003"),
            ("2k", "2000"),
            ("1Ei", str(2**60)),
            ("1e+2", "100"),
            ("0", "0"),
        ),
    ],
)
def test_what_kubernetes_reads(amount: str, number: str) -> None:
    assert is_quantity(amount)
    assert number_of(amount) == Decimal(number)
    assert number_of(times(3, amount)) == 3 * Decimal(number)


@pytest.mark.parametrize(
    "amount",
    [
        "",
        ".",
        "1K",
        "1ki",
        "1mi",
        "1 Gi",
        " 1",
        "1Gi ",
        "e3",
        "1e",
        "1e1.5",
        "--1",
        "0x10",
        "1,5",
        "٣",
        "nan",
        "-1",
    ],
)
def test_what_no_pod_can_ask_for(amount: str) -> None:
    assert not is_quantity(amount)


def test_numbers_of_yaml() -> None:
    assert [written(one) for one in (4, 1e9, 0.5, "8Gi")] == ["4", "1000000000", "0.5", "8Gi"]
