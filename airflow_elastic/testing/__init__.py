"""Help for testing, also your own engines and stores.

- `engine_conformance`, `store_conformance`: suites that an engine and a store have to pass.
- `fake_engine`: an engine in memory. `standalone`, `airflow_rest`: a real Airflow of a test's own.
"""
