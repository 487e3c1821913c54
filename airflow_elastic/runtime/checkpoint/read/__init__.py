"""Reading entries of a checkpoint into tensors, whatever number of ranks wrote them (resharding).

`read_plan` decides which part goes where, `load` and `fill` read and check it with threads; `fetch_once` has one rank
of a worker fetch what several need. `reader` is the way in. This room must not decide which checkpoint is read.
"""
