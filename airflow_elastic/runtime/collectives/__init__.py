"""The few collectives that the runtime needs, and training that exchanges weights now and then.

`process_group` is this rank among the others, `agreement` has all ranks find out together whether one was asked for
something, `local_sgd` and `averaging_rounds` average weights. This room must not know of checkpoints.
"""
