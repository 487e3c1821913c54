"""Reads entries of a checkpoint into tensors, whatever number of ranks wrote them (resharding).

- `reader`: lists what a checkpoint holds; start here.
- `read_plan`: which part goes where.
- `load`, `fill`: read and verify the parts with threads.
- `fetch_once`: one rank of a worker fetches what several need.

This room must not choose the checkpoint.
"""
