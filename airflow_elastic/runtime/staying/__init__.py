"""Ranks that stay alive from one generation to the next: how an agent and its ranks agree on it (ADR 0038).

- `rank_links`: the agent's side, a socket to which its ranks connect.
- `agent_link`: a rank's side, while it is in `run.train`.

It knows no model, no checkpoint and no collective.
"""
