"""What pages and commands show of runs, as plain documents: the same under Airflow, alone, and in a terminal.

- `cache`: reads a run once for all who watch it. `index`: all runs, with `run_list` for their rows, and `curves`.
- `below`: the runs below a folder or a prefix.
- `overview`, `workers`, `events`, `logs`, `checkpoints`, `history`: one document each. `actions`: what may be asked.

In: stores. Out: values for JSON. It knows no server, no page and no Airflow.
"""
