"""Copies of states in the memory of other workers: buddies, and reads from peers.

Each worker sends what it stages to the next one (`buddy_sender`), which keeps it (`buddy_memory`). `peer_server` and
`peer_client` give ranks of other workers what an agent has in memory; all of them speak through `connection`.
"""
