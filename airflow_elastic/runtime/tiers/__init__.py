"""The places that keep a staged state: shared memory, the local disk, another worker's memory, and storage.

- `shared_memory` belongs to the agent and outlives ranks. `follower` copies what is staged there to one of the tiers.
- `tiered_files` reads each file of a checkpoint from the nearest tier.
- `worker` is the part of the agent that the tiers may use.

These modules handle a state as bytes: they must not know what it means.
"""
