"""Auxiliary networks: value models and process reward models."""
