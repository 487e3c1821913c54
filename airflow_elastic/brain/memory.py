"""What the Brain knows of runs: rows from and to `core.brain.facts.Facts`."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from sqlalchemy import delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from airflow_elastic.brain.tables import ProposalRow, RunRow, SpeedRow, TimingRow, UsageRow
from airflow_elastic.core.brain.facts import Facts, Timing
from airflow_elastic.core.brain.kind import kind_of
from airflow_elastic.core.brain.use import Use
from airflow_elastic.spec.brain.proposal import Proposal
from airflow_elastic.spec.codec import decode, encode
from airflow_elastic.spec.scaling.observation import Speed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

    from airflow_elastic.brain.database import Database
    from airflow_elastic.spec.run import RunSpec

#: The newest runs of a kind count: older ones had other code and other machines.
MOST_RUNS = 200

#: Fields of `Facts` that are columns of the same name.
_COLUMNS = tuple(
    field.name for field in fields(Facts) if field.name not in ("batch", "speeds", "uses", "timing")
)


def remember(database: Database, facts: Facts, now: float) -> bool:
    """Keep a run in place of what was known of it.

    Args:
        database: where.
        facts: the run.
        now: epoch seconds.

    Returns:
        False: another process has meanwhile kept a later moment of the same run.
    """
    with database.writing() as session:
        row = _locked(session, facts, now)
        if row.entries > facts.entries:
            return False
        for name in _COLUMNS:
            setattr(row, name, getattr(facts, name))
        row.batch_option, row.batch_size = facts.batch or (None, None)
        row.learnt_at = now
        row.speeds, row.uses = [], []
        session.flush()
        row.speeds = [SpeedRow(**asdict(one)) for one in facts.speeds]
        row.uses = [UsageRow(**asdict(one)) for one in facts.uses]
        if row.timing is None:
            row.timing = TimingRow()
        for name, value in asdict(facts.timing).items():
            setattr(row.timing, name, value)
        return True


def known(
    database: Database, *, kind: str | None = None, name: str | None = None, uri: str | None = None
) -> tuple[Facts, ...]:
    """The runs that are known, oldest first; only those of this kind, name or URI, where given."""
    query = select(RunRow).order_by(RunRow.created_at, RunRow.uri)
    for column, value in ((RunRow.kind, kind), (RunRow.name, name), (RunRow.uri, uri)):
        if value is not None:
            query = query.where(column == value)
    with database.reading() as session:
        return tuple(_facts(row) for row in session.scalars(query))


def of_kind(database: Database, spec: RunSpec) -> tuple[Facts, ...]:
    """The newest runs that are like this one, oldest first; at most `MOST_RUNS`."""
    newest = select(RunRow).where(RunRow.kind == kind_of(spec)).limit(MOST_RUNS)
    if spec.brain == "single":
        newest = newest.where(RunRow.name == spec.name)
    with database.reading() as session:
        rows = list(session.scalars(newest.order_by(RunRow.created_at.desc(), RunRow.uri.desc())))
        return tuple(_facts(row) for row in reversed(rows))


def settled(database: Database, after_seconds: float) -> dict[str, int]:
    """The runs that had ended for so long when they were last read: entries of the journal, by URI."""
    with database.reading() as session:
        query = select(RunRow.uri, RunRow.entries).where(
            RunRow.outcome.is_not(None), RunRow.learnt_at >= RunRow.ended_at + after_seconds
        )
        return {row.uri: row.entries for row in session.execute(query)}


def forget(database: Database, uri: str | None) -> int:
    """Remove what is known of a run, and of all runs below that URI; None: of all. Returns how many runs."""
    with database.writing() as session:
        rows, told = delete(RunRow), delete(ProposalRow)
        if uri is not None:
            below = uri.rstrip("/") + "/"
            rows = rows.where(or_(RunRow.uri == uri, RunRow.uri.startswith(below, autoescape=True)))
            told = told.where(or_(ProposalRow.uri == uri, ProposalRow.uri.startswith(below, autoescape=True)))
        session.execute(told)
        return int(session.execute(rows).rowcount)  # type: ignore[attr-defined]


def _locked(session: Session, facts: Facts, now: float) -> RunRow:
    """The row of the run, new or not, which no other process changes meanwhile."""
    values = {name: getattr(facts, name) for name in _COLUMNS}
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    begin = {**values, "entries": -1, "learnt_at": now}
    session.execute(insert(RunRow).values(**begin).on_conflict_do_nothing(index_elements=["uri"]))
    return session.scalars(select(RunRow).where(RunRow.uri == facts.uri).with_for_update()).one()


def _facts(row: RunRow) -> Facts:
    timing = row.timing
    return Facts(
        **{name: getattr(row, name) for name in _COLUMNS},
        batch=None
        if row.batch_option is None or row.batch_size is None
        else (row.batch_option, row.batch_size),
        speeds=tuple(Speed(one.workers, one.step_seconds, one.steps) for one in row.speeds),
        uses=tuple(
            Use(one.signal, one.samples, one.p50, one.p95, one.peak)
            for one in sorted(row.uses, key=lambda one: one.signal)
        ),
        timing=Timing(**{field.name: getattr(timing, field.name) for field in fields(Timing)}),
    )


def keep_proposals(database: Database, uri: str, made: Sequence[Proposal], now: float) -> None:
    """Keep the proposals for a run, in place of those before."""
    with database.writing() as session:
        session.execute(delete(ProposalRow).where(ProposalRow.uri == uri))
        session.flush()
        for one in made:
            session.merge(ProposalRow(uri=uri, field=one.field, at=now, document=encode(one)))


def kept_proposals(database: Database, uri: str) -> tuple[Proposal, ...]:
    """The proposals that were last made for a run, by field."""
    with database.reading() as session:
        query = select(ProposalRow.document).where(ProposalRow.uri == uri).order_by(ProposalRow.field)
        return tuple(decode(Proposal, document) for document in session.scalars(query))
