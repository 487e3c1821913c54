"""The pure core: events go in, decisions come out. No I/O, no clock, no randomness, no logging.

- `machine`: the state machine, `state` what it knows of a run.
- `restart`: whether a run goes on after a failure (`decide`). `goodput`: where the time went. `phases`: several
  trainings.
- `health`: what observations mean. `checkpoints`: when to save, which checkpoints stay.
- `status_document`, `event_sentences`, `severity`: what people and programs read. `units`: sizes for people.
"""
