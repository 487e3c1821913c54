"""What optimizers keep: by names of parameters, at any world size.

`states_by_name` is the way out and back, `state_allocation` makes room for states that do not exist yet, and
`composite` knows optimizers that hold others. This room must not know of files.
"""
