"""Checkpoints, as ranks write and read them: layout, saving, reading, restoring.

`format` says what the bytes mean, `tensors` what a tensor is, `optimizers` what an optimizer keeps. `read` fills a
state from files, `save` copies a state into memory of the agent, and `restore` finds the newest whole checkpoint and
loads it. `tiers`, not this room, copies from memory to storage, disk or a buddy.
"""
