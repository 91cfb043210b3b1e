"""Slot engine: one module per engine, each with a class `Engine`."""
