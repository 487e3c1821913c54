"""How long training waits for a save of DLRover's flash checkpoint; needs nothing but DLRover and torch.

`flash.py FOLDER ROUNDS MEGABYTES DEVICE`: its agent has its saver in another process, as dlrover-run does. Prints JSON,
a list of seconds each: one memcpy of the same bytes, a save to memory, one to disk, and until that one is there.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

folder, rounds, megabytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
device = torch.device(sys.argv[4])
TENSORS = 108


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


agent = os.fork()
if agent == 0:
    AsyncCheckpointSaver.start_async_saving_ckpt()
    while True:
        signal.pause()
try:
    torch.set_num_threads(1)
    side = int((megabytes * 1e6 / 4 / TENSORS) ** 0.5)
    state = {f"layer {i}": torch.ones(side, side, device=device) for i in range(TENSORS)}
    size = TENSORS * side * side * 4
    source, target = torch.ones(size // 4, device=device), torch.ones(size // 4)
    target = target.pin_memory() if device.type == "cuda" else target
    saver = DdpCheckpointer(str(folder))
    figures: dict[str, list[float]] = {"memcpy": [], "memory": [], "disk": [], "there": []}
    for number in range(rounds + 1):
        step = 10 * (number + 1)
        figures["memcpy"].append(timed(lambda: target.copy_(source)))
        figures["memory"].append(
            timed(lambda step=step: saver.save_checkpoint(step, state, storage_type=StorageType.MEMORY))
        )
        begun = time.perf_counter()
        figures["disk"].append(
            timed(lambda step=step: saver.save_checkpoint(step + 1, state, storage_type=StorageType.DISK))
        )
        tracker = folder / "dlrover_latest.txt"
        while not tracker.exists() or tracker.read_text().strip() != str(step + 1):
            if time.perf_counter() - begun > 120:
                sys.exit(f"step {step + 1} was not written within two minutes: {sorted(folder.rglob('*'))}")
            time.sleep(0.005)
        figures["there"].append(time.perf_counter() - begun)
    print(json.dumps({name: seconds[1:] for name, seconds in figures.items()}))
finally:
    os.kill(agent, signal.SIGKILL)
