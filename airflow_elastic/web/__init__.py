"""The plugin: what Airflow's UI shows of a run."""
