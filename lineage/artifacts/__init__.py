"""Artifacts on disk: the store, seals, signatures and provenance."""
