"""Saving, as a rank does it: a state is copied into shared memory, and training goes on.

- `save`: the way in. `staging`: the layout of a state in memory.
- `staging_area`: the rank's side of the shared memory.
- `overlapped_copy`: copies while the next step computes.

This room must not write to storage.
"""
