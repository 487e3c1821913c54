"""A rank's share of the data, and the account of it.

The order of samples depends on seed and epoch, never on the world size (`sampler`, `stream_plan`). `share` hands a
script its portions and knows the position; `accounting` notes the samples that were really consumed.
`early_stopping` ends a training that gets no better. This room must
not know of agents, nor where states are stored.
"""
