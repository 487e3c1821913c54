"""What the DAGs digits_quickstart and digits_retrain are made of."""
