"""The list of runs: kept in memory for all who ask, and read behind their backs.

- `index`: keeps it. `run_list`: its rows, sorted, filtered and counted. `curves`: a small curve for each.
- `below`: the runs below a folder or a prefix.

In: where runs are. Out: rows for JSON.
"""
