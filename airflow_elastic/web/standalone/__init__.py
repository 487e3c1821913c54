"""The server of `airflow-elastic ui`: the pages of all runs below a folder or an S3 prefix, without Airflow.

- `server`: binds to loopback and says where the page is. `access`: the token, and which hosts count. `runs`: the runs
  below the root. `prometheus`: their metrics.
"""
