"""Migrations of the Brain's tables, by Alembic: `env` runs them over an open connection, `versions` has them."""
