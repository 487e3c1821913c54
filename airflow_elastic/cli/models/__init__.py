"""Commands about promoted models: `models`, `promote`, `rollback`."""
