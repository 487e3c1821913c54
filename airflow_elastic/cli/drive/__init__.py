"""`airflow-elastic run`: make a specification from options or a file, and drive the run to its end."""
