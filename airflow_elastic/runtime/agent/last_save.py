"""Writes the last save of a complete training to storage. Until then it is only in the agent's memory."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from airflow_elastic.runtime.agent.worker import Stopped
from airflow_elastic.spec.errors import ElasticError, StoreError, StoreUnfit

if TYPE_CHECKING:
    from tenacity import RetryCallState

    from airflow_elastic.runtime.agent.worker import Worker

log = logging.getLogger(__name__)

#: The longest pause before storage that has failed, or is full, is tried again. The pauses double up to this.
LONGEST_SECONDS = 30.0

_LOOK_SECONDS = 0.25


def keep_last(node: Worker) -> None:
    """Write the last save of a complete training. If storage is out of reach, or full, try again for a while.

    At most for half of `health.no_progress_seconds`: after the full time the controller would report that the run
    hangs, and not why. It also ends if the worker must end, or if a newer generation begins. A failure is only
    logged here: the next flush tries again, and reports it.

    Raises:
        Stopped: the worker must end.
    """

    def rest(seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not node.superseded():
            if node.stop_at is not None:
                raise Stopped
            time.sleep(min(left, _LOOK_SECONDS))

    patience = node.record.spec.health.no_progress_seconds / 2
    too_long = stop_after_delay(patience)
    insist = Retrying(
        retry=retry_if_exception(_may_pass),
        wait=wait_exponential(max=min(LONGEST_SECONDS, patience / 4)),
        stop=lambda state: node.superseded() or too_long(state),
        sleep=rest,
        before_sleep=_log_failure,
        reraise=True,
    )
    try:
        insist(node.persist)
    except ElasticError as error:
        log.warning("the last save of the training is not written: %s", error)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, StoreUnfit)


def _log_failure(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning(
        "training is complete and its last state is not written; trying again in %.0f s: %s",
        *(state.upcoming_sleep, error),
    )
