"""One module for each kind of job on a cluster: its manifest, its status, its scaling. Pure.

To add a kind: a module here, and its entry point in `pyproject.toml`. What kinds share is one floor up, in `engine`.
"""
