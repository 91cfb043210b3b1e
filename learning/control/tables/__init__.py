"""Algorithms on tables: finite worlds whose states are numbered."""
