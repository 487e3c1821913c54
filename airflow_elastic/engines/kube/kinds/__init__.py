"""One module for each kind of job on a cluster: its manifest, its status, its scaling. Pure.

To add a kind: a module here, and its entry point in `pyproject.toml`. Its protocol is
`engines.kube.kind`. The code that all kinds share is `engines.kube.engine`.
"""
