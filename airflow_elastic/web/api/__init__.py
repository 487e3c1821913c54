"""The HTTP routes of the pages, the same under Airflow and under `airflow-elastic ui`.

- `app`: builds the application. `routes`: of one run, and of the list. `answers`: JSON with an ETag. `guard`: what is
  refused before anything is read.
- `host`: what the two hosts provide: which runs there are, who asks, and what they may do.

It must not know Airflow.
"""
