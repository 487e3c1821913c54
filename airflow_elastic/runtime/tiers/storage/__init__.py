"""Staged states on their way to the run's storage, beside training.

- `writer`: the agent's thread. `checkpoint_files`: the files that one worker writes.
- `throttle`: how fast it may send. `uncommitted`: files of saves that are not checkpoints.
"""
