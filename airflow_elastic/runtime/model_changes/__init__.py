"""Models that change their shape while they are trained, and passes that are undone.

- `rebuild`: makes a saved shape again before it is loaded.
- `callback_changes`: the callbacks of frameworks that change shapes.
- `ddp_renewal`: has DDP exchange the gradients of layers that thaw or are added.
- `rollback`: puts a model and its optimizers back as they were, from two kinds of snapshots.

This room must not know when a run saves.
"""
