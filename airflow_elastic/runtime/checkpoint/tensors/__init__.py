"""What a tensor is and what it is called: sharded, wrapped, shared, lazy, or removed.

`sharding` tells kinds of tensors apart, `parameter_names` gives the names of a state dict, and `shared_storage` finds
tensors that are the same memory. This room must not know of files.
"""
