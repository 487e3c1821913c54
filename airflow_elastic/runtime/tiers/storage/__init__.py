"""Writing staged states to the run's storage while training goes on.

- `writer`: the agent's thread. `checkpoint_files`: the files that one worker writes.
- `throttle`: how fast it may send. `uncommitted`: files of saves that are not checkpoints yet.
"""
