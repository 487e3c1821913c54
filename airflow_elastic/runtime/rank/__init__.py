"""A rank's process, from its start to its end.

- `start_rank.py`: the file that agents and launchers start.
- `run`: turns the process into a rank. `main_module`: runs the script as Python's `__main__`.
- `error_file`: writes down an exception for the agent.

Nothing else may import this room.
"""
