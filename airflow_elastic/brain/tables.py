"""The tables of the Brain. `migrations` creates them; a test compares the two."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Base(DeclarativeBase):
    """What all tables have in common."""

    type_annotation_map = {float: Float(53), dict[str, Any]: JSON}  # noqa: RUF012 - as SQLAlchemy wants it


class RunRow(Base):
    """One run. See `core.brain.facts.Facts`."""

    __tablename__ = "run"
    __table_args__ = (Index("run_kind", "kind"), Index("run_name", "name"))

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    uri: Mapped[str] = mapped_column(Text, unique=True)
    name: Mapped[str] = mapped_column(String(200))
    kind: Mapped[str] = mapped_column(String(16))
    training: Mapped[str] = mapped_column(String(16))
    engine: Mapped[str] = mapped_column(Text)
    launcher: Mapped[str] = mapped_column(Text)
    owner: Mapped[str | None] = mapped_column(Text)
    outcome: Mapped[str | None] = mapped_column(String(16))
    created_at: Mapped[float]
    ended_at: Mapped[float | None]
    wall_seconds: Mapped[float]
    goodput: Mapped[float]
    steps: Mapped[int] = mapped_column(BigInteger)
    total_steps: Mapped[int | None] = mapped_column(BigInteger)
    workers: Mapped[int]
    procs: Mapped[int]
    gpu_hours: Mapped[float]
    samples_per_second: Mapped[float]
    batch_option: Mapped[str | None] = mapped_column(Text)
    batch_size: Mapped[int | None]
    spent: Mapped[dict[str, Any]]
    resources: Mapped[dict[str, Any]]
    entries: Mapped[int]
    learnt_at: Mapped[float]

    speeds: Mapped[list[SpeedRow]] = relationship(
        cascade="all, delete-orphan", order_by="SpeedRow.workers", lazy="selectin"
    )
    uses: Mapped[list[UsageRow]] = relationship(cascade="all, delete-orphan", lazy="selectin")
    timing: Mapped[TimingRow] = relationship(cascade="all, delete-orphan", lazy="selectin", uselist=False)


class SpeedRow(Base):
    """Seconds a step with one number of workers."""

    __tablename__ = "speed"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    workers: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    step_seconds: Mapped[float]
    steps: Mapped[int] = mapped_column(BigInteger)


class UsageRow(Base):
    """What workers used of their machines, by signal."""

    __tablename__ = "usage"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    signal: Mapped[str] = mapped_column(String(64), primary_key=True)
    samples: Mapped[int] = mapped_column(BigInteger)
    p50: Mapped[float]
    p95: Mapped[float]
    peak: Mapped[float]


class TimingRow(Base):
    """How long things took that are no steps. See `core.brain.facts.Timing`."""

    __tablename__ = "timing"

    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
    starts: Mapped[int]
    start_seconds: Mapped[float | None]
    longest_start_seconds: Mapped[float | None]
    restore_seconds: Mapped[float | None]
    saves: Mapped[int]
    save_seconds: Mapped[float | None]
    written_seconds: Mapped[float | None]
    step_cost_seconds: Mapped[float | None]
    pause_seconds: Mapped[float | None]
    worker_hours: Mapped[float]
    failures: Mapped[int]
    out_of_memory: Mapped[int]


class ProposalRow(Base):
    """What was proposed for a run last. `document`: fields of `core.brain.proposals.Proposal`."""

    __tablename__ = "proposal"

    uri: Mapped[str] = mapped_column(Text, primary_key=True)
    field: Mapped[str] = mapped_column(String(200), primary_key=True)
    at: Mapped[float]
    document: Mapped[dict[str, Any]]


class AllocationRow(Base):
    """What runs have asked for of one capacity, and their shares. Replaced as a whole, if `version` is as read."""

    __tablename__ = "allocation"

    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    at: Mapped[float]
    document: Mapped[dict[str, Any]]
