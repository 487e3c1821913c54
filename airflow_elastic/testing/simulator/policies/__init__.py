"""Policies choose the number of workers of each run: our own, and baselines from papers and documents.

In: the runs and the cluster at a moment. Out: sizes that are asked for. A policy does not see the future.
"""
