"""Training that knows nothing of us and needs no torch: a line now and then, for so long.

`tick.py --seconds 10 [--until SIGN] [--fail-at 5]`: `tick N of process PID` five times a second. It ends early, as if
its time were over, when the file SIGN is there.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--seconds", type=float, default=5.0)
parser.add_argument("--until", default="")
parser.add_argument("--fail-at", type=int, default=0)
arguments = parser.parse_args()

deadline = time.monotonic() + arguments.seconds
tick = 0
while time.monotonic() < deadline and not (arguments.until and Path(arguments.until).exists()):
    tick += 1
    print(f"tick {tick} of process {os.getpid()}", flush=True)  # noqa: T201
    if tick == arguments.fail_at:
        raise ValueError(f"on purpose, at tick {tick}")
    time.sleep(0.2)
print("all ticks done", flush=True)  # noqa: T201
