"""Runs of a plan: start, resume, inspect."""
