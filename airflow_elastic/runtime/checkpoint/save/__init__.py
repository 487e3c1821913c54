"""Saving, as a rank does it: a state is copied into shared memory, and training goes on.

`save` is the way in, `staging` lays a state out, `staging_area` is the rank's side of the shared memory, and
`overlapped_copy` copies while the next step computes. This room must not write to storage.
"""
