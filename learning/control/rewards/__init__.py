"""Rewards beside those of a world: of parts, of pieces of episodes, of costs, written by a model."""
