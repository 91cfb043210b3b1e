"""From stages as written to the steps that they stand for."""
