"""Rank 0 is done at once. The last rank leaves a child behind and is killed; the next attempt must not find the child.

It knows nothing of our runtime. `--child FILE`: where the child's process id is written.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--child", type=Path, required=True)
options = parser.parse_args()
if int(os.environ["RANK"]) == 0:
    sys.exit()
if os.environ["AIRFLOW_ELASTIC_ATTEMPT"] == "1":
    child = subprocess.Popen(["sleep", "600"])
    options.child.write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
left = Path(f"/proc/{options.child.read_text()}")
if left.exists() and " Z " not in (left / "stat").read_text():
    sys.exit("what the attempt before had started is still there")
options.child.with_suffix(".gone").touch()
