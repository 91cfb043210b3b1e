"""Agents: their folder, generated tools, and experiences extracted from practice rollouts."""
