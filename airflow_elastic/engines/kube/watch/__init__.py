"""The cluster's view of a job, read purely: slim objects come in, words and states of workers go out.

`taken` says why the platform ended a pod, and `waits` what a pod waits for on its node. `beside` knows the sidecars.
`ends` keeps how workers ended whose pods have gone since. `events` reads what only events say. None of these modules
knows a kind of job.
"""
