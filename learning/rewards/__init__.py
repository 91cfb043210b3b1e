"""Slot rewards: one file per family; a name is `family.function`."""
