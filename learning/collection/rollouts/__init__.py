"""Slot rollout: turns sample requests into completions."""
