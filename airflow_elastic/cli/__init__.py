"""The command line `airflow-elastic`: it needs no Airflow, no torch and no cloud client to start.

- `main`: the commands. `drive`: `run`. `inspect`: commands about a run. `cluster`: commands without a run.
- `console`: how it prints. `find_run`: from a word to a run.
"""
