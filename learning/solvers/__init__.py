"""Slot solver: what an evaluation does with a model besides asking it once."""
