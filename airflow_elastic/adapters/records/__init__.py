"""The documents of a run, each with its own reader and writer, on top of `storage`.

`journal` is the truth and the lock; `mailbox` has requests of people, `reports` what controller and agents tell each
other, `checkpoints` the index of checkpoints and `checkpoint_retention` their removal. This room decides nothing.
"""
