"""A stream of samples that are generated while the trainer updates."""
