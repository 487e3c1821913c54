"""The layout of a run URI: the key of every object. Only this module knows it; both sides import it.

```text
journal/00000007.json                         event 7, created exclusively
fences/00000002                               attempt 2 was begun: no earlier attempt may write any more
control/<id>.json                             the mailbox: requests to the controller
orders/attempt-0002.json                      the controller's orders to the agents of an attempt
reports/attempt-0002.json                     the report of an attempt's lead agent
reports/attempt-0002-stacks/<id>-node-1.json  stacks of a worker's ranks, as answer to a request
checkpoints/manifests/000000000340.json       makes checkpoint 340 exist
checkpoints/data/000000000340-a0002-g01/      its files
checkpoints/data/000000000340-a0002-g01-disk/ files of a checkpoint that was recovered from workers' disks
checkpoints/pins/000000000340.json            protects the checkpoint from removal: somebody refers to it
checkpoints/pins/000000000340/<id>.json       others who refer to it: it is protected until all have let it go
checkpoints/verified.json                     which checkpoints were read back in full, and when
checkpoints/uses/000000000340.json            who has loaded the checkpoint outside of the run
checkpoints/evaluations/000000000340/<id>.json  metrics of the checkpoint, as an evaluation has measured them
checkpoints/quarantine/000000000340.json      the manifest of a checkpoint that was set aside, and why
checkpoints/resumed.json                      the last attempt that went on from a chosen checkpoint
samples/0002/01/000000000340-rank-0.json      samples that a rank has consumed, written with a save
jobs/<name>/...                               documents that a cluster job's workers share (adapters.records.job_files)
logs/attempt-0002/g01-rank-0.log              output of a rank
history/training/archive-00000017             series of the run, as of the last fold (adapters.records.history)
history/training/recent-a0002-<writer>        what a lead agent has added since; history/controller/: a controller
tensorboard/attempt-0002/events.out...         event files of TensorBoard, if they are wanted
acknowledged/<owner>                          a task has taken the result
notices.json                                  for which events a task's callbacks were called
cold-start.json                               ranks start in new processes, as a fork has made one fail
status.json                                   the status document
```
"""

from __future__ import annotations

STATUS = "status.json"
JOURNAL = "journal/"
CONTROL = "control/"
FENCES = "fences/"
LOGS = "logs/"
CHECKPOINTS = "checkpoints/"
MANIFESTS = "checkpoints/manifests/"
CHECKPOINT_DATA = "checkpoints/data/"
PINS = "checkpoints/pins/"
VERIFIED = "checkpoints/verified.json"
USES = "checkpoints/uses/"
SAMPLES = "samples/"
RESUMED = "checkpoints/resumed.json"
QUARANTINE = "checkpoints/quarantine/"
EVALUATIONS = "checkpoints/evaluations/"
JOBS = "jobs/"
HISTORY = "history/"
TENSORBOARD = "tensorboard/"
ACKNOWLEDGED = "acknowledged/"
NOTICES = "notices.json"
COLD_START = "cold-start.json"


def journal_entry(seq: int) -> str:
    """Key of the journal's event `seq`, from 0."""
    return f"{JOURNAL}{seq:08d}.json"


def fence(attempt: int) -> str:
    """Key whose existence says that the attempt was begun."""
    return f"{FENCES}{attempt:08d}"


def request(name: str) -> str:
    """Key of one request in the mailbox."""
    return f"{CONTROL}{name}.json"


def orders(attempt: int) -> str:
    """Key of the orders to an attempt's agents."""
    return f"orders/attempt-{attempt:04d}.json"


def report(attempt: int) -> str:
    """Key of an attempt's newest progress."""
    return f"reports/attempt-{attempt:04d}.json"


def stacks(attempt: int, request: str) -> str:
    """Prefix of the keys of all answers to one request for stacks."""
    return f"reports/attempt-{attempt:04d}-stacks/{request}-"


def manifest(step: int) -> str:
    """Key of the manifest that makes the checkpoint of a step exist."""
    return f"{MANIFESTS}{step:012d}.json"


def account(attempt: int, generation: int, step: int, rank: int) -> str:
    """Key of a rank's account of its samples, written with the save of a step."""
    return f"{SAMPLES}{attempt:04d}/{generation:02d}/{step:012d}-rank-{rank}.json"


def pin(step: int) -> str:
    """Key whose existence protects the checkpoint of a step from removal."""
    return f"{PINS}{step:012d}.json"


def other_pins(step: int) -> str:
    """Folder of the names of others who have pinned the checkpoint of a step, after the first one."""
    return f"{PINS}{step:012d}/"


def uses(step: int) -> str:
    """Key of the record of who has loaded the checkpoint of a step outside of the run."""
    return f"{USES}{step:012d}.json"


def evaluations(step: int) -> str:
    """Folder of what evaluations have measured of the checkpoint of a step."""
    return f"{EVALUATIONS}{step:012d}/"


def quarantined(step: int) -> str:
    """Key of the record of a step's checkpoint that was set aside."""
    return f"{QUARANTINE}{step:012d}.json"


def checkpoint_data(step: int, attempt: int, generation: int) -> str:
    """Folder of a checkpoint's files. No two attempts, and no two generations of one, write into the same folder."""
    return f"{CHECKPOINT_DATA}{step:012d}-a{attempt:04d}-g{generation:02d}/"


#: Suffix of the folder of a checkpoint that was recovered from workers' disks.
RECOVERED = "-disk"


def accounts(attempt: int, generation: int, step: int) -> str:
    """Prefix of the keys of all accounts that ranks write with the save of a step."""
    return account(attempt, generation, step, 0).removesuffix("0.json")


def recovered_data(step: int, attempt: int, generation: int) -> str:
    """Folder of files that an attempt has found on workers' disks. Another name, as it may reach that step itself."""
    return checkpoint_data(step, attempt, generation).rstrip("/") + f"{RECOVERED}/"


def job(name: str) -> str:
    """Folder of the documents that the workers of a job share."""
    return f"{JOBS}{name}/"


def history_archive(source: str, number: int) -> str:
    """Key of an archive of a source of the history, `training` or `controller`."""
    return f"{HISTORY}{source}/archive-{number:08d}"


def history_recent(source: str, attempt: int, writer: str) -> str:
    """Key of what a writer of the history has added since the last archive."""
    return f"{HISTORY}{source}/recent-a{attempt:04d}-{writer}"


def event_files(attempt: int) -> str:
    """Folder of an attempt's event files of TensorBoard."""
    return f"{TENSORBOARD}attempt-{attempt:04d}/"


def attempt_logs(attempt: int) -> str:
    """Folder of an attempt's output."""
    return f"{LOGS}attempt-{attempt:04d}/"


def rank_log(generation: int, rank: int) -> str:
    """Name of a rank's output within the attempt's folder."""
    return f"g{generation:02d}-rank-{rank}.log"


def log_part(key: str, number: int) -> str:
    """Key of a part of a rank's output, from 0. There are several parts where storage cannot append to objects."""
    return f"{key}.{number:05d}" if number else key


def is_part(key: str, log: str) -> bool:
    """Whether an object is a part of this output."""
    return key == log or (key.startswith(f"{log}.") and key[len(log) + 1 :].isdigit())
