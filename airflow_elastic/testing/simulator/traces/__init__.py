"""Traces of clusters: jobs with their submission, and machines with their outages. Read from public formats, or drawn.

In: files, or a seed. Out: a `Trace`. It knows nothing of policies.
"""
