"""What Alembic runs: the migrations, over the connection that `database` has opened, within its transaction."""

from alembic import context

from airflow_elastic.brain.tables import Base

#: Not `alembic_version`, by which other programs' databases are known.
VERSION_TABLE = "brain_version"

if hasattr(context, "config"):  # only while Alembic runs it: anybody may import it
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()
