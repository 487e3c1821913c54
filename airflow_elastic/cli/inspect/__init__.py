"""Commands about a run that exists: look at it, ask it for something, check its checkpoints."""
