"""Finds the newest checkpoint that is whole, and loads it into the objects of a script.

- `available`: lists the checkpoints.
- `restore`: loads one. If it is damaged, the one before.
- `origin`: loads what a run starts from.
- `load_model`, `weights`: read one outside training.

This room must not know when a run saves.
"""
