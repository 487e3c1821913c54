"""What the cluster shows of a job, read purely: slim objects come in, words and states of workers go out.

`taken` tells why the platform ended a pod, `waits` what a pod waits for on its node, `beside` what runs in a pod beside
the container that trains, `ends` how workers ended whose pods have gone since, and `events` asks for what is told in
events alone. None of it knows a kind of job.
"""
