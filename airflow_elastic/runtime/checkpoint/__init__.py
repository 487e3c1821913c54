"""How ranks write and read checkpoints.

- `format`: how values become bytes. `tensors`: kinds and names of tensors. `optimizers`: their states.
- `read`: fills a state from files, at any number of ranks.
- `save`: copies a state into the agent's shared memory.
- `restore`: finds the newest whole checkpoint and loads it.

`tiers`, not this room, copies from shared memory to storage, disk or a buddy.
"""
