"""Artifacts on the disk: the store, seals, signatures and what they were made with."""
