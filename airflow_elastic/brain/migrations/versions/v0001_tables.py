"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create them."""
    real, long = sa.Float(53), sa.BigInteger()
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("uri", sa.Text(), nullable=False, unique=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("training", sa.String(16), nullable=False),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("launcher", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("outcome", sa.String(16)),
        sa.Column("created_at", real, nullable=False),
        sa.Column("ended_at", real),
        sa.Column("wall_seconds", real, nullable=False),
        sa.Column("goodput", real, nullable=False),
        sa.Column("steps", long, nullable=False),
        sa.Column("total_steps", long),
        sa.Column("workers", sa.Integer(), nullable=False),
        sa.Column("procs", sa.Integer(), nullable=False),
        sa.Column("gpu_hours", real, nullable=False),
        sa.Column("samples_per_second", real, nullable=False),
        sa.Column("batch_option", sa.Text()),
        sa.Column("batch_size", sa.Integer()),
        sa.Column("spent", sa.JSON(), nullable=False),
        sa.Column("resources", sa.JSON(), nullable=False),
        sa.Column("entries", sa.Integer(), nullable=False),
        sa.Column("learnt_at", real, nullable=False),
    )
    op.create_index("run_kind", "run", ["kind"])
    op.create_index("run_name", "run", ["name"])
    op.create_table(
        "speed",
        _run(),
        sa.Column("workers", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("step_seconds", real, nullable=False),
        sa.Column("steps", long, nullable=False),
    )
    op.create_table(
        "usage",
        _run(),
        sa.Column("signal", sa.String(64), primary_key=True),
        sa.Column("samples", long, nullable=False),
        *(sa.Column(name, real, nullable=False) for name in ("p50", "p95", "peak")),
    )
    seconds = ("start", "longest_start", "restore", "save", "written", "step_cost", "pause")
    op.create_table(
        "timing",
        _run(),
        *(sa.Column(f"{name}_seconds", real) for name in seconds),
        sa.Column("worker_hours", real, nullable=False),
        *(
            sa.Column(name, sa.Integer(), nullable=False)
            for name in ("starts", "saves", "failures", "out_of_memory")
        ),
    )
    op.create_table(
        "proposal",
        sa.Column("uri", sa.Text(), primary_key=True),
        sa.Column("field", sa.String(200), primary_key=True),
        sa.Column("at", real, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
    )
    op.create_table(
        "allocation",
        sa.Column("pool", sa.Text(), primary_key=True),
        sa.Column("version", long, nullable=False),
        sa.Column("at", real, nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
    )


def downgrade() -> None:
    """Remove them, with all that is known."""
    for name in ("allocation", "proposal", "timing", "usage", "speed", "run"):
        op.drop_table(name)


def _run() -> sa.Column[int]:
    return sa.Column("run_id", sa.Integer(), sa.ForeignKey("run.id", ondelete="CASCADE"), primary_key=True)
