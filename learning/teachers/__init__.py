"""Slot teacher: writes a completion for a problem."""
