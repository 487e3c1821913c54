"""What the status says where it has the same from two sides."""

from __future__ import annotations

from airflow_elastic.cli.status import _position


def test_a_loss_is_told_once_and_what_the_script_ends_with_counts() -> None:
    document = {
        "step": 192,
        "total_steps": 192,
        "epoch": 3,
        "loss": 0.07,
        "metrics": {"accuracy": 0.9},
        "samples": {"seen": 0, "per_second": None},
        "ended_at": 1.0,
    }
    assert "loss 0.07, accuracy 0.9" in _position(document)
    told = _position({**document, "metrics": {"loss": 0.06, "accuracy": 0.9}})
    assert "loss 0.06, accuracy 0.9" in told
    assert told.count("loss") == 1
