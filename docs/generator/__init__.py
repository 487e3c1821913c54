"""What docs/generate.py writes, one module for each source."""
