"""What the bytes of a checkpoint mean: values, names, layout of files, and files of weights.

- `file_layout`: the place of each tensor in a file. `row_bands`: the bands that a sharded tensor is stored in.
- `safe_unpickling`: which types may be unpickled, for all pickles of a checkpoint. `values`: what is no tensor, as
  bytes.
- `tensor_split`, `flatten`: a state as names and tensors. `compatibility`: whether a checkpoint fits a model.
- `weight_files`: state dicts and safetensors.

This room must not know of files' places, of ranks, or of agents.
"""
