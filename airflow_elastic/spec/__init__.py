"""What a run is: frozen dataclasses of the standard library, with their checks. No I/O, no clock.

- `run`: the specification. `checkpoint`: its rules for saving. `validation`: what is allowed, and the words of a
  refusal.
- `events`: everything that can happen. `status`: what is observed. `actions`: what a controller has to do.
- `checkpoints`: the documents of a checkpoint. `layout`: their place under a run URI. `codec`: JSON.
- `models`: promoted models, and what a run starts from. `training`: what a training decides by itself.
"""
