"""The command line `airflow-elastic`: no Airflow, no torch and no cloud client is needed to start it."""
