"""Kinds and names of tensors.

- `sharding`: sharded tensors, and tensors that wrap others. `shared_storage`, `overlap`: tensors in the same memory.
- `parameter_names`: their names in a state dict.
- `host_numbers`: numbers that come from a GPU without a wait. `pinned_memory`: for copies from GPUs.
- `lazy_modules`: parameters without a shape. `removed_parameters`: parameters that the model had once.

This room must not know of files.
"""
