"""The Brain: a memory of past runs in a database, and the shares of runs in a capacity.

- `database`: where it is, and its form. `tables`, `migrations`: that form. `errors`: what goes wrong.
- `learn`, `read`: runs as they are stored. `memory`: what is known of runs. `allocation`: shares of a capacity.
- `client`: what a controller asks; it goes on without an answer.

In: runs below a URI. Out: `core.brain.facts.Facts`, proposals and shares, which `core.brain` makes. Only this package
knows SQLAlchemy and Alembic (extra `brain`). It must not know engines or the database of Airflow.
"""
