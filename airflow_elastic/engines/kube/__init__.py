"""Engines whose workers are pods. One module a kind of job; what they share is here only once."""
