"""Processes that have imported torch, and are forked.

- `prepare`: imports what ranks need, and looks whether the process may be forked.
- `server`: forks ranks. `child`: a forked process, as its parent sees it.
- `blame`: which failures a fork may have caused.

In: orders of an agent. Out: rank processes. This room must not know of agents, sessions and scripts.
"""
