"""Slot ratio: log-ratios of the trained policy to the sampling policy."""
