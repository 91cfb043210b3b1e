"""Slot extra_samples: completions added without being sampled now."""
