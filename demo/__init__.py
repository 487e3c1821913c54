"""`make demo`: a real Airflow, a real training, real faults, and a check that they happened."""
