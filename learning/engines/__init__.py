"""Slot engine: one file each, with one class Engine."""
