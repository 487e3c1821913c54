"""The format of a checkpoint: values, names, layout of files, and files of weights.

- `file_layout`: the place of each tensor in a file. `row_bands`: the bands that a sharded tensor is stored in.
- `safe_unpickling`: the types that may be unpickled. `values`: values that are no tensors, as bytes.
- `tensor_split`, `flatten`: a state as names and tensors. `compatibility`: whether a checkpoint fits a model.
- `weight_files`: state dicts and safetensors.

This room must not know where files are stored, nor of ranks or agents.
"""
