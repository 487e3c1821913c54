"""What the bytes of a checkpoint mean: values, names, layout of files, and files of weights.

`safe_unpickling` is the one module that unpickles; `compatibility` says whether a checkpoint fits a model. This room
must not know of files' places, of ranks, or of agents.
"""
