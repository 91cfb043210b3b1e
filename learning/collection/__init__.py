"""Slots of the RL loop that act on samples: which prompts, which rollouts, what is added or dropped."""
