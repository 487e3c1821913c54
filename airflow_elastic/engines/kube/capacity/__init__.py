"""How many workers a cluster has room for now, and who waits for room that a run has.

- `pods`: what a pod requests. `nodes`: which nodes it fits. `quotas`: what a namespace allows. `queues`: what a queue
  allows. `removal`: whether a node is going to be removed.
- `view`: nodes and pods at one moment. `claims`: who waits for room of a run.
- `reader`: reads the cluster once for all runs. `room`: one number, and each limit in words. `of_job`: the capacity for
  a job. `measures`: the part of an engine.
"""
