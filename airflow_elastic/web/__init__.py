"""The plugin: pages of a run in Airflow's UI.

- `app`: the routes; each asks Airflow for the reader's permission on the DAG first.
- `located`: from a task instance to its run, and whether the run belongs to it.
- `plugin`: what Airflow loads. `cli`: the commands `airflow elastic`.
"""
