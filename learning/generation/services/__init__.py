"""Sampling that goes on while the trainer works."""
