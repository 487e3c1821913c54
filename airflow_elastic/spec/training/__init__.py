"""What a training decides and measures while it runs. Plain data and pure rules.

- `early_stop`: whether it ends before its last epoch, because it gets no better.
- `recovery`: how long the parts of a recovery took.
"""
