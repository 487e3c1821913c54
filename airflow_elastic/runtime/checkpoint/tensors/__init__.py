"""Kinds and names of tensors.

- `sharding`: sharded tensors, and tensors that wrap others. `shared_storage`, `overlap`: tensors in the same memory.
- `parameter_names`: their names in a state dict.
- `lazy_modules`, `removed_parameters`: those not yet, or no longer, there.

This room must not know of files.
"""
