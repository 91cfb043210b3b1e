"""Rules across the settings of a step, reported before anything runs."""
