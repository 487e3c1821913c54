"""Models that change their shape while they are trained, and passes that are undone.

`rebuild` makes a saved shape again before it is loaded, `callback_changes` knows which callbacks of frameworks change
shapes, and `ddp_renewal` has DDP exchange what thaws or is added. `rollback` with the two snapshots puts a model and
its optimizers back as they were. This room must not know when a run saves.
"""
