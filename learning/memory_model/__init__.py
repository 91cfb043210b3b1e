"""Estimates of the memory that a step needs."""
