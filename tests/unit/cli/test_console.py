"""How the command line speaks where it is not heard."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from airflow_elastic.cli.console import console as make
console = make()
for at in range(3):
    console.print("line", at)
sys.stderr.write("went on")
sys.stderr.flush()
import os
os._exit(0)
"""


def test_where_there_is_no_room_for_what_is_said_the_command_goes_on() -> None:
    """A controller's log may lie on a disk that is full."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (0, "went on")
