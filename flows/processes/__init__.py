"""Processes: trees of them, locks, signals, environment, and their output without secrets."""
