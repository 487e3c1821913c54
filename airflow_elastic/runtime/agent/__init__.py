"""The agent: the process that starts, watches and ends the ranks of one worker.

In: the job's record and orders of the controller. Out: rank processes, the worker's reports, and how it ended. `agent`
is its whole life, `worker` its state; `elastic_worker` starts ranks anew in place, `command_worker` runs somebody
else's launcher, `rendezvous` brings workers together, `spares` keeps processes ready. An agent must not know the
script's session or its model.
"""
