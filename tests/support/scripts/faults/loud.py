"""Prints much, and fails the first time: lines by the hundred thousand in a second, and lines of megabytes.

ARGUMENTS: how many short lines, how many long ones, and a folder for what is told of it.
"""

import os
import sys
import time
from pathlib import Path

short, long, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
attempt = os.environ["AIRFLOW_ELASTIC_ATTEMPT"]
(folder / f"began-{attempt}").write_text(str(time.time()))

began, printed = time.monotonic(), 0
for first in range(0, short, 1000):
    block = b"".join(b"%09d of a line that says next to nothing\n" % n for n in range(first, first + 1000))
    printed += len(block)
    while block:
        block = block[os.write(1, block) :]
seconds = time.monotonic() - began
for n in range(long):
    line = b"%d" % (n % 10) * (3 << 20) + b"\n"
    printed += len(line)
    while line:
        line = line[os.write(1, line) :]
(folder / f"printed-{attempt}").write_text(f"{printed} {short / seconds:.0f}")
(folder / f"ended-{attempt}").write_text(str(time.time()))
sys.exit(attempt == "1" and 3)
