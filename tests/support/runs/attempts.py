"""Attempts of a run in this process: each has an agent's memory and persister, and one rank that may die."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import numpy
import torch

from airflow_elastic.runtime.checkpoint.save.save import Saver
from airflow_elastic.runtime.environment import RankEnvironment
from airflow_elastic.runtime.session.session import Session
from airflow_elastic.runtime.tiers.shared_memory import ENVIRONMENT
from airflow_elastic.spec.checkpoint import CheckpointPolicy
from airflow_elastic.spec.codec import encode
from tests.support.training.saving import SavingWorker

T = TypeVar("T")


class Killed(BaseException):
    """The rank is gone, at once; what it has saved its agent writes."""


def die_at(session: Session, die: int) -> None:
    """Have the first attempt be killed after this step, which is one of its training. 0: never."""
    step = session.step

    def stepped(*given: Any, **metrics: Any) -> None:
        step(*given, **metrics)
        if not session.in_scratch and session.attempt == 1 and session.steps == die:
            raise Killed

    session.step = stepped  # type: ignore[method-assign]


def attempt(run: Path, number: int, policy: CheckpointPolicy, script: Callable[[Session], T]) -> T | None:
    """What a script returns in this attempt; None where it was killed."""
    worker = SavingWorker(str(run), attempt=number, policy=policy)
    prefix = worker.node.rank_files
    found = {
        "AIRFLOW_ELASTIC_RUN_URI": str(run),
        "AIRFLOW_ELASTIC_ATTEMPT": str(number),
        "AIRFLOW_ELASTIC_CHECKPOINT": json.dumps(encode(policy)),
        "AIRFLOW_ELASTIC_RANK_FILES": str(prefix),
        ENVIRONMENT: worker.node.slots.environment()[ENVIRONMENT],
    }
    random.seed(1)
    torch.manual_seed(1)
    numpy.random.seed(1)

    def busy(_: Saver) -> bool:
        """Whoever asks has waited for it: which saves are left out would be a matter of luck."""
        worker.persister.write_new()
        return False

    with mock.patch.dict("os.environ", found), mock.patch.object(Saver, "_busy", busy):
        try:
            session = Session(RankEnvironment.read(), total_steps=None, backend=None, timeout=60.0)
            return script(session)
        except Killed:
            return None
        finally:
            worker.persister.flush()


def to_the_end(run: Path, policy: CheckpointPolicy, script: Callable[[Session], T]) -> tuple[T, int]:
    """What a script returns that is killed now and then, and in how many attempts."""
    for number in range(1, 50):
        if (result := attempt(run, number, policy, script)) is not None:
            return result, number
    raise AssertionError("it has no end")
