"""Rewards of toy tasks; a name is `module.function`."""
