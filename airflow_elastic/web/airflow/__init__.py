"""The pages inside Airflow: with `plugin` and `cli`, the only part of `web` that imports it.

- `app`: what Airflow's API server mounts. `locate_run`: from a task instance to its run, and whether the run belongs to
  it.
"""
