"""Commands for an existing run: look at it, scale, save or stop it, check its checkpoints."""
