"""Where things lie under a run URI. The one place that knows; both sides import it.

journal/00000007.json                    event 7, created exclusively
fences/00000002                          attempt 2 was begun: nobody may write for an earlier one
control/<id>.json                        the mailbox: requests to the controller
orders/attempt-0002.json                 what the controller tells the agents of an attempt
reports/attempt-0002.json                what the lead agent of an attempt reports
reports/attempt-0002-stacks/<id>-node-1.json where a worker's ranks stood when that was asked
checkpoints/manifests/000000000340.json  makes checkpoint 340 exist
checkpoints/data/000000000340-a0002-g01/ its files
checkpoints/data/000000000340-a0002-g01-disk/ those of one that was found on workers' disks
checkpoints/pins/000000000340.json       it is never removed: somebody refers to it
samples/0002/01/000000000340-rank-0.json  what a rank has consumed, told with a save, where a run accounts for it
checkpoints/verified.json                the newest one that ranks have read back from here, whole
checkpoints/quarantine/000000000340.json a damaged one: its manifest, and what is wrong with it
jobs/<name>/...                          what the workers of a cluster's job share (adapters.jobfiles says what)
logs/attempt-0002/g01-rank-0.log         output of a rank
acknowledged/<owner>                     a task has taken the result
status.json                              the status document
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
SAMPLES = "samples/"
QUARANTINE = "checkpoints/quarantine/"
JOBS = "jobs/"
ACKNOWLEDGED = "acknowledged/"


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
    """What the keys of all answers begin with to a question where the ranks of an attempt stand."""
    return f"reports/attempt-{attempt:04d}-stacks/{request}-"


def manifest(step: int) -> str:
    """Key of the manifest that makes the checkpoint of a step exist."""
    return f"{MANIFESTS}{step:012d}.json"


def account(attempt: int, generation: int, step: int, rank: int) -> str:
    """Key of what a rank tells of its samples with the save of a step."""
    return f"{SAMPLES}{attempt:04d}/{generation:02d}/{step:012d}-rank-{rank}.json"


def pin(step: int) -> str:
    """Key whose existence keeps the checkpoint of a step."""
    return f"{PINS}{step:012d}.json"


def quarantined(step: int) -> str:
    """Key of the record of a step's damaged checkpoint."""
    return f"{QUARANTINE}{step:012d}.json"


def checkpoint_data(step: int, attempt: int, generation: int) -> str:
    """Folder of a checkpoint's files: no two attempts, nor two generations of one, ever write into the same."""
    return f"{CHECKPOINT_DATA}{step:012d}-a{attempt:04d}-g{generation:02d}/"


#: How the folder of a checkpoint's files ends that was found on workers' disks.
RECOVERED = "-disk"


def accounts(attempt: int, generation: int, step: int) -> str:
    """What the keys of all that ranks tell with the save of a step begin with."""
    return account(attempt, generation, step, 0).removesuffix("0.json")


def recovered_data(step: int, attempt: int, generation: int) -> str:
    """Folder of a checkpoint's files that an attempt has found on workers' disks: it may come to that step itself."""
    return checkpoint_data(step, attempt, generation).rstrip("/") + f"{RECOVERED}/"


def job(name: str) -> str:
    """Folder of the documents that the workers of a job share."""
    return f"{JOBS}{name}/"


def attempt_logs(attempt: int) -> str:
    """Folder of an attempt's output."""
    return f"{LOGS}attempt-{attempt:04d}/"


def rank_log(generation: int, rank: int) -> str:
    """Name of a rank's output within the attempt's folder."""
    return f"g{generation:02d}-rank-{rank}.log"


def log_part(key: str, number: int) -> str:
    """A part of a rank's output, from 0: where the run lies on a service whose objects do not grow, it has several."""
    return f"{key}.{number:05d}" if number else key


def is_part(key: str, log: str) -> bool:
    """Whether an object is a part of this output."""
    return key == log or (key.startswith(f"{log}.") and key[len(log) + 1 :].isdigit())
