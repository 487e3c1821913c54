"""The parts of a pod that the engines write and rely on, and how they combine with a user's own values.

In: the user's pod template and options. Out: the refused parts of it, and a template with the engines' values.
`names` has the names, `owned` the declared list, which the documentation prints.
"""
