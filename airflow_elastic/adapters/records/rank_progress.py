"""The progress of a job, gathered from the pages of its ranks.

If workers share a folder, any process can gather it at any time: the lead agent does while the job runs. The engine
does it once more at the end, to know the last step of killed ranks. Other workers send their reports to the lead agent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_elastic.adapters.host import shared_page
from airflow_elastic.adapters.records.job_files import JobFiles, JobRecord, Members, RankNote, attempt_of
from airflow_elastic.core.checkpoints.users import whole_on_disks
from airflow_elastic.spec.checkpoints.phases import PhaseRecord
from airflow_elastic.spec.codec import decode
from airflow_elastic.spec.errors import SpecError
from airflow_elastic.spec.status import Progress, RankReport, Stretch, WorkerUsage

#: The document of a worker that says what it uses of the machine.
USAGE = "usage.json"


@dataclass(frozen=True, slots=True)
class RankProgress:
    """The report of one rank: its number, its worker, the words of its page, and its note."""

    number: int
    worker: str
    words: tuple[float, ...]
    note: RankNote


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """The reports of one generation's ranks, in the order of their numbers. `began_at`: epoch seconds."""

    members: Members
    began_at: float
    ranks: tuple[RankProgress, ...]


def gather_files(files: JobFiles, record: JobRecord) -> Progress:
    """The progress of a job's newest attempt, by its ranks' reports, where workers share a folder."""
    told, attempt = [], attempt_of(record, files.newest_members())
    for members in files.generations():
        if attempt_of(record, members) != attempt:
            continue
        began = files.began(members.generation)
        ranks = [rank for node in members.nodes for rank in read_reports(files, node, members.generation)]
        if began is not None and ranks:
            told.append(
                GenerationProgress(members, began.at, tuple(sorted(ranks, key=lambda rank: rank.number)))
            )
    newest = told[-1].members.nodes if told else ()
    usage = [files.read(f"node-{node}/{USAGE}", WorkerUsage) for node in newest]
    return with_usage(gather(record, attempt, told), usage)


def with_usage(progress: Progress, usage: Sequence[WorkerUsage | None]) -> Progress:
    """The same with what each worker has said of its machine; None for one that has not.

    What the disks have is said once for all workers, so that the report stays small.
    """
    told = tuple(replace(one, on_disk=None) for one in usage if one is not None)
    return replace(progress, usage=told, on_disk=whole_on_disks(usage))


def gather(record: JobRecord, attempt: int, told: Sequence[GenerationProgress]) -> Progress:
    """The progress of an attempt, by the reports of its generations, oldest first."""
    stretches = tuple(_stretch(record, one) for one in told)
    ranks = told[-1].ranks if told else ()
    lead = ranks[0] if ranks else None
    attached = [rank for rank in ranks if rank.words[shared_page.ATTACHED]]
    return Progress(
        attempt=attempt,
        at=time.time(),
        step=max((stretch.to_step for stretch in stretches), default=0),
        moved_at=max((rank.words[shared_page.MOVED_AT] for rank in ranks), default=0.0),
        total_steps=int(lead.words[shared_page.TOTAL_STEPS]) or None if lead else None,
        epoch=int(lead.words[shared_page.EPOCH]) if lead else 0,
        samples=int(lead.words[shared_page.SAMPLES]) if lead else 0,
        samples_per_second=lead.words[shared_page.SAMPLES_PER_SECOND] if lead else 0.0,
        loss=_loss(lead) if lead else None,
        metrics=lead.note.metrics if lead else {},
        odd=_odd(lead) if lead else {},
        early_stop=lead.note.early_stop if lead else None,
        world_size=stretches[-1].world_size if stretches else 0,
        stretches=stretches,
        ranks=tuple(_report(rank) for rank in ranks),
        attached=bool(attached),
        finished=bool(attached) and all(rank.words[shared_page.FINISHED] for rank in attached),
        phases=_phases(lead) if lead else (),
        saved=int(min((rank.words[shared_page.SAVED] for rank in attached), default=0)) - 1,
        left_out=int(max((rank.words[shared_page.LEFT_OUT] for rank in attached), default=0)) - 1,
        writing_seconds=max((rank.words[shared_page.WRITING] for rank in attached), default=0.0),
    )


def read_reports(files: JobFiles, node: int, generation: int) -> list[RankProgress]:
    """The reports of one worker's ranks, read from their pages."""
    found = []
    for path in files.node(node).glob(f"g{generation:04d}-rank-*.page"):
        words = shared_page.read_words(path)
        if words is not None:
            number = int(path.stem.rpartition("-")[2])
            found.append(RankProgress(number, f"node-{node}", tuple(words), _note(path.with_suffix(".json"))))
    return found


def _note(path: Path) -> RankNote:
    try:
        return decode(RankNote, json.loads(path.read_bytes()))
    except (OSError, ValueError, SpecError):
        return RankNote()


def _stretch(record: JobRecord, told: GenerationProgress) -> Stretch:
    ranks, members = told.ranks, told.members
    first = [rank.words[shared_page.FIRST_STEP_AT] for rank in ranks]
    # A step counts when every rank has done it. Steps may differ if ranks were killed between two writes of one step.
    return Stretch(
        generation=members.generation,
        world_size=len(members.nodes) * record.spec.workers.procs,
        workers=len(members.nodes),
        started_at=told.began_at,
        first_step_at=max(first) if all(first) else None,
        last_step_at=max(rank.words[shared_page.MOVED_AT] for rank in ranks) or None,
        from_step=int(ranks[0].words[shared_page.FROM_STEP]),
        to_step=int(min(rank.words[shared_page.STEP] for rank in ranks)),
        stepping_seconds=max(rank.words[shared_page.STEPPING] for rank in ranks),
        saving_seconds=max(rank.words[shared_page.SAVING] for rank in ranks),
        restoring_seconds=max(rank.words[shared_page.RESTORING] for rank in ranks),
        restored_bytes=int(sum(rank.words[shared_page.RESTORED] for rank in ranks)),
        to_restore_bytes=int(sum(rank.words[shared_page.TO_RESTORE] for rank in ranks)),
        stayed=sum(rank.note.stayed or False for rank in ranks) or None,
    )


def _phases(rank: RankProgress) -> tuple[PhaseRecord, ...]:
    """The rank's phases in its last note, with the steps that it has done since."""
    *others, newest = rank.note.phases or (PhaseRecord(),)
    if newest.complete or not rank.note.phases:
        return rank.note.phases
    return (
        *others,
        replace(newest, steps=max(newest.steps, int(rank.words[shared_page.STEP]) - newest.from_step)),
    )


def _report(rank: RankProgress) -> RankReport:
    return RankReport(
        rank=rank.number,
        worker=rank.worker,
        step=int(rank.words[shared_page.STEP]),
        at=rank.words[shared_page.MOVED_AT],
        step_seconds=rank.words[shared_page.STEP_SECONDS],
        forward_seconds=rank.words[shared_page.FORWARD_SECONDS],
        loss=_loss(rank),
        memory_bytes=int(rank.words[shared_page.MEMORY]),
    )


def _loss(rank: RankProgress) -> float | None:
    return rank.words[shared_page.LOSS] if rank.words[shared_page.LOSS_TOLD] == 1 else None


def _odd(rank: RankProgress) -> dict[str, str]:
    """The numbers of a rank that are not finite, in words."""
    words = {f"metrics.{name}": word for name, word in rank.note.odd.items()}
    told = int(rank.words[shared_page.LOSS_TOLD]) - 2
    if 0 <= told < len(shared_page.ODD_LOSSES):
        words["loss"] = shared_page.ODD_LOSSES[told]
    return words
