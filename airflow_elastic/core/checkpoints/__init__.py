"""Decisions about checkpoints. Pure.

- `save_interval`: how often to save, from the cost of a save and the rate of failures.
- `retention`: which checkpoints to keep.
- `recovery_choice`: from which of the states on the workers' disks to go on.
- `throttle`: how fast to upload beside training.
- `users`: who has gone on from a checkpoint, and which states the workers' disks have.
- `sample_accounts`: whether every sample counts once.
"""
