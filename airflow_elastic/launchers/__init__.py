"""How the ranks of a worker are started: command lines, rendered purely.

A launcher is a value. It is found by name through the entry point group `airflow_elastic.launchers`, so another package
can add one. It makes no decisions and starts nothing itself: the agent of each worker runs the command lines.
"""

from airflow_elastic.launchers.api import Launcher, Place, find_launcher, launcher_names
from airflow_elastic.launchers.builtin import ACCELERATE, PYTHON, TORCHRUN, TORCHRUN_PLAIN
from airflow_elastic.launchers.dlrover import DLROVER_RUN
from airflow_elastic.launchers.horovod import HOROVODRUN

__all__ = [
    "ACCELERATE",
    "DLROVER_RUN",
    "HOROVODRUN",
    "PYTHON",
    "TORCHRUN",
    "TORCHRUN_PLAIN",
    "Launcher",
    "Place",
    "find_launcher",
    "launcher_names",
]
