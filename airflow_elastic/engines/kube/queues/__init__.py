"""Who decides when the workers of a job may start: Kueue, Volcano, or Kubernetes itself (`queueing`).

In: a job and its options, and slim objects of the cluster. Out: fields and objects that queue a job, or make it a
gang; and the words about a job that waits or was stopped. This package must not know the kind of job.
"""
