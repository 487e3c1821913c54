"""Staged states on their way to the run's storage, beside training.

`writer` is the agent's thread, `checkpoint_files` the layout of what one worker writes, `throttle` how fast it may
send, and `uncommitted` remembers files of saves that are not checkpoints.
"""
