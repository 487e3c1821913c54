"""The agent: the process that starts, watches and ends the ranks of one worker.

In: the job's record, and orders from the controller. Out: rank processes, reports, and how the worker ended.

- `agent`: the agent from start to end. `worker`: its state. `node_host`: starts the agents of the engine `local`.
- `elastic_worker`: starts ranks again in place. `command_worker`: runs the command of another launcher.
- `rendezvous`: brings workers together. `rank_group`: the ranks of one generation. `fork_server`: forks ranks.

On SIGTERM, `agent` notes the request. `elastic_worker` then asks the ranks, through `worker.parked`, to finish their
step and save (`session.save_schedule`). `worker.flush` writes that to storage before the agent ends.

An agent must not know the script's session or its model.
"""
