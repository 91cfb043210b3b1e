"""Algorithms of kind control and the terms of their losses."""
