"""Restoring: the newest checkpoint that is whole is found, read and put into a script's objects.

`available` lists what there is, `restore` reads it and goes back to the one before where it is damaged, `load_model`
and `weights` read it outside training. This room must not know when a run saves.
"""
