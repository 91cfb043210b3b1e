"""Validated steps, their functions and references, and their order."""
