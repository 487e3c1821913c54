"""Models that change their shape in training, and passes that are undone.

- `rebuild`: restores a saved shape before the checkpoint is loaded.
- `callback_changes`: shapes that callbacks of frameworks change.
- `ddp_renewal`: makes DDP exchange the gradients of layers that thaw or are added.
- `rollback`: restores a model and its optimizers to an earlier state, from two kinds of snapshots.

This room must not know when a run saves.
"""
