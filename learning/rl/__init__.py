"""The RL loop."""
