"""What observations mean: the class of a failure, a hang, a straggler, a deadline. Pure.

`classify` gives a failure its class, `deadlines` says which silence is a failure, `stack_comparison` and `stragglers`
find the rank. `core.restart` decides what follows.
"""
