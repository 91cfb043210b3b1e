"""Supervised training: the loop that sft, preference and reward_model share."""
