"""What the queues of Kueue and of Volcano leave to a run, and who waits in them for its share.

- `kueue_quota`, `kueue_claims`, `volcano`: pure. `limits`, `waiting`: read them from the cluster.
"""
