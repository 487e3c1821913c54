"""What a rank reports of its steps."""

from __future__ import annotations

import torch

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.runtime.checkpoint.save.save import Position
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.reporting.heartbeat import Heartbeat


def test_the_last_report_is_of_the_last_step() -> None:
    """Steps are noted once a second: a short training ended with the epoch and the loss of its beginning."""
    heartbeat = Heartbeat(RankEnvironment(0, 0, 1, None, 1, 1, None, None), None)
    for step in range(1, 7):
        loss = torch.tensor(1.0 / step, requires_grad=True)
        heartbeat.stepped(step, Position(epoch=(step - 1) // 2, samples=8 * step), loss, {})
    heartbeat.finished(6, {})
    words = heartbeat.words
    assert (words[shared_page.STEP], words[shared_page.EPOCH], words[shared_page.SAMPLES]) == (6, 2, 48)
    assert (words[shared_page.LOSS_TOLD], round(words[shared_page.LOSS], 6)) == (1, round(1 / 6, 6))


def test_a_loss_that_cannot_be_read_any_more_ends_nothing() -> None:
    """A compiled model overwrites its results, such as the loss, when it is called again, e.g. to evaluate it."""

    class Overwritten(torch.Tensor):
        def __float__(self) -> float:
            raise RuntimeError("overwritten by a subsequent run")

    heartbeat = Heartbeat(RankEnvironment(0, 0, 1, None, 1, 1, None, None), None)
    heartbeat.stepped(1, Position(epoch=0, samples=8), torch.tensor(0.5).as_subclass(Overwritten), {})
    heartbeat.finished(1, {})
    assert (heartbeat.words[shared_page.FINISHED], heartbeat.words[shared_page.LOSS_TOLD]) == (1, 0)
