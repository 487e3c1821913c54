"""Knows nothing of airflow-elastic and needs no torch: counts to STEPS, resumes where it was, waits for a file if told.

count.py STEPS [HOLD_FILE]: with HOLD_FILE it counts on, without end, until that file exists.
"""

import os
import sys
import time
from pathlib import Path

steps, hold = int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
rank = os.environ["RANK"]
saved = Path(os.environ["AIRFLOW_ELASTIC_RESUME_PATH"]) / f"count-{rank}"
step = int(saved.read_text()) if saved.exists() else 0
print(f"rank {rank} of {os.environ['WORLD_SIZE']} begins at {step}", flush=True)
while step < steps or (hold is not None and not hold.exists()):
    step += 1
    temporary = saved.with_suffix(".new")
    temporary.write_text(str(step))
    temporary.replace(saved)
    if step % 20 == 1:
        print(f"rank {rank} at {step}", flush=True)
    time.sleep(0.02)
print(f"rank {rank} is done", flush=True)
