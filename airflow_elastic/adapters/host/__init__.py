"""This machine: processes, memory, the page a rank shares with its agent, scratch folders.

In: names and pids. Out: facts of the operating system. This room must not know of runs.
"""
