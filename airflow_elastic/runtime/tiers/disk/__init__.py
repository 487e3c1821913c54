"""Copies of states on the disk of a worker's machine, which outlive agent, pod and reboot.

`copies` is the folder, `writer` the agent's thread, and `recovery` makes a checkpoint out of what workers find there
when storage does not have it.
"""
