"""Storage, records of a run, Kubernetes and the host: all that reads or writes. It decides nothing."""
