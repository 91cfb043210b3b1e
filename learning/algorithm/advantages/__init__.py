"""Slot advantage: operations from rewards to advantages."""
