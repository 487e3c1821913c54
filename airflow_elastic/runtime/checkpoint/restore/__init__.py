"""Finds the newest checkpoint that is whole, and puts it into the objects of a script.

- `available`: the checkpoints there are.
- `restore`: reads one, and goes back to the one before where it is damaged.
- `load_model`, `weights`: read one outside training.

This room must not know when a run saves.
"""
