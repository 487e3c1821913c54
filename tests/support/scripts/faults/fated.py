"""Runs a script as Python would, and has a rank die in the first attempt: `fated.py STEP EVERY SCRIPT ARGS...`.

The last rank is killed within the step after STEP, when the state that was due last (each EVERY steps) is in storage:
so it is known from where the second attempt goes on. No save is left out because another one is still being written.
STEP 0: nobody dies.
"""

import os
import random
import runpy
import signal
import sys
import time
from typing import Any

import numpy

from airflow_elastic.adapters.records import checkpoints
from airflow_elastic.adapters.storage.open import open_store
from airflow_elastic.runtime.checkpoint.save.save import Saver
from airflow_elastic.runtime.session.session import Session

fate, every, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
store = open_store(os.environ["AIRFLOW_ELASTIC_RUN_URI"])
step, busy = Session.step, Saver._busy


def fated(run: Session, *words: Any, **metrics: Any) -> None:
    if fate and run.attempt == 1:
        due = run.steps // every * every
        while due and checkpoints.steps(store)[-1:] < [due]:
            time.sleep(0.02)
        if run.steps == fate and run.rank == run.world_size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    step(run, *words, **metrics)


def patient(saver: Saver) -> bool:
    while busy(saver):
        time.sleep(0.02)
    return False


Session.step, Saver._busy = fated, patient  # type: ignore[method-assign]
random.seed(7)  # what scripts do not seed is saved all the same
numpy.random.seed(7)
sys.argv = sys.argv[3:]
sys.path[0] = os.path.dirname(script)
runpy.run_path(script, run_name="__main__")
