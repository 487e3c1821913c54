"""The pages of runs: in Airflow's UI, and without Airflow.

- `api`: the routes, the same for both. `airflow`, `standalone`: the two hosts. `pages`: the built scripts and styles.
- `plugin`: what Airflow loads. `cli`: the commands `airflow elastic`.
"""
