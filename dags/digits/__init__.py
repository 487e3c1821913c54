"""What the DAGs digits_* are made of."""
