"""Lies beside the script; facts.py imports it, as projects do."""
