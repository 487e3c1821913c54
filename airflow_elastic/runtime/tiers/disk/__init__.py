"""Copies of states on the disk of a worker's machine. They outlive the agent, its pod, and a reboot.

`copies` is the folder, `inventory` lists it, and `writer` is the agent's thread. `recovery` makes a checkpoint from the
copies that storage does not have.
"""
