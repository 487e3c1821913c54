"""What training has saved last: in the agent's memory alone, and gone with it, until storage takes it."""

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

#: How long storage that has failed, or is full, is left alone: twice as long each time, up to this.
LONGEST_SECONDS = 30.0

_LOOK_SECONDS = 0.25


def keep_last(node: Worker) -> None:
    """Write what a training that is complete has saved last; storage that is away, or full, is waited for.

    For half of `health.no_progress_seconds`: after all of it the controller would take the run to hang, and say so and
    not why. Or until the worker is told to end, or to begin anew. That it could not be written is only logged: whoever
    writes it next is told why.

    Raises:
        Stopped: the worker is to end.
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
        before_sleep=_tell,
        reraise=True,
    )
    try:
        insist(node.persist)
    except ElasticError as error:
        log.warning("what training has saved last is not written: %s", error)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StoreError) and not isinstance(error, StoreUnfit)


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning(
        "training is complete and its last state is not written; trying again in %.0f s: %s",
        *(state.upcoming_sleep, error),
    )
