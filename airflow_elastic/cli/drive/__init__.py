"""`airflow-elastic run`: from options or a file to a specification, and then a run driven to its end."""
