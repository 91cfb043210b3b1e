"""Declared multi-stage post-training of language models; installed, it holds all our packages."""
