"""What a training decides by itself while it runs. Plain data and pure rules.

- `early_stop`: whether it ends before its last epoch, because it gets no better.
"""
