"""Ends as it is told: `leave.py code 3`, `leave.py signal 9`, `leave.py raise`, `leave.py 0`; only rank 0 does."""

import os
import signal
import sys
import time

if os.environ.get("RANK", "0") != "0":
    time.sleep(3600)
what, *value = sys.argv[1:]
if what == "code":
    sys.exit(int(value[0]))
if what == "signal":
    os.kill(os.getpid(), int(value[0]))
    signal.pause()
raise ValueError("a bad learning rate")
