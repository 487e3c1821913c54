"""Who decides when the workers of a job may start: Kueue, Volcano, or Kubernetes itself (`queueing`).

In: a job and its options; objects of theirs, slim. Out: what has to be written into the objects of a job, or made
beside them, so that it is queued or starts as a gang; and what is told of one that waits or was taken back. What kind
of job it is, is none of its business.
"""
