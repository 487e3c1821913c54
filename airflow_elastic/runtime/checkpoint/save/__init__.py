"""How a rank saves: a state is copied into shared memory, and training goes on.

- `save`: start here. `staging`: chooses a rank's part of a state, and its places in memory.
- `layout`: a state in its places, and its copy. `repeated_layout`: uses the places of the save before.
- `staging_area`: the rank's side of the shared memory.
- `overlapped_copy`: copies while the next step computes.

This room must not write to storage.
"""
