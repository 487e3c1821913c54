"""The documents of a run, each with its reader and writer, on top of `storage`.

- `journal`: the truth, and the lock.
- `mailbox`: requests of people. `reports`: orders and progress between controller and agents.
- `checkpoints`: the index of checkpoints. `checkpoint_retention`: their removal, by the agent
  after each commit and by `airflow-elastic prune`. `checkpoint_parts`: their commit.
- `job_files`, `job_objects`: how an engine and its agents meet.

This room decides nothing.
"""
