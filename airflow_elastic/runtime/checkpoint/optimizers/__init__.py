"""States of optimizers, by names of parameters, at any world size.

- `states_by_name`: saves and loads states.
- `state_allocation`: allocates states that do not exist yet.
- `composite`: finds the optimizers inside other objects.

This room must not know of files.
"""
