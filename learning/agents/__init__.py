"""Agents: their folder, tools that somebody wrote for them, and what practice makes of their rollouts."""
