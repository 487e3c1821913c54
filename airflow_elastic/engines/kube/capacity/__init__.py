"""How many workers a cluster has room for now.

- `pods`: what a pod requests. `nodes`: which nodes it fits. `quotas`: what limits allow.
- `room`: asks the API server, and says the number and each limit in words.
"""
