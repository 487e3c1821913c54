"""Where a staged state is kept until it is a checkpoint: shared memory, local disk, a buddy's memory, storage.

`shared_memory` belongs to the agent and outlives ranks. `follower` hands on what is staged there to one of the tiers;
`tiered_files` reads a file from the nearest one. `worker` is all that the tiers may know of their agent. This room
must not know what a state means.
"""
