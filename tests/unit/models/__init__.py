"""Promoted models: their records, the rule, and what promotes them."""
