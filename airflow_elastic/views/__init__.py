"""What pages and commands show of runs, as plain documents: the same under Airflow, alone, and in a terminal.

- `cache`: reads a run once for all who watch it. `told`: its events as documents.
- `overview`, `workers`, `events`, `logs`, `checkpoints`, `history`: a document each. `actions`: requests to the run.
- `all_runs`: the list.

In: stores. Out: values for JSON. It knows no server, no page and no Airflow.
"""
