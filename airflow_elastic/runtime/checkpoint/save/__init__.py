"""How a rank saves: a state is copied into shared memory, and training goes on.

- `save`: start here. `staging`: the layout of a state in memory.
- `staging_area`: the rank's side of the shared memory.
- `overlapped_copy`: copies while the next step computes.

This room must not write to storage.
"""
