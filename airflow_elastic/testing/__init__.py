"""Help for testing: fakes, conformance suites, and a real Airflow of one's own."""
