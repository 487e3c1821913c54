"""Copies of states in the memory of other workers.

Each worker sends its staged states to the next worker (`buddy_sender`), which keeps them (`buddy_memory`). Ranks of
other workers read the states in an agent's memory with `peer_client` from `peer_server`. `connection` is the protocol.
"""
