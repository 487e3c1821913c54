"""What the DAGs digits_quickstart, digits_retrain and digits_kubernetes are made of."""
