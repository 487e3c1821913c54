"""`python -m airflow_elastic.cli`, where the script `airflow-elastic` is not on the path."""

from airflow_elastic.cli.main import main

if __name__ == "__main__":
    main()
