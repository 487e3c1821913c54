"""What the engines write into a pod and rely on, and what becomes of a user's own word in the same place.

In: the user's pod template and options. Out: what of it cannot be, and a template in which the engines' words hold.
`names` has the names, `owned` the declared list, which the documentation prints.
"""
