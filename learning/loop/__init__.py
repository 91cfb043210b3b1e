"""What one iteration of an RL loop does, from what is asked for to the optimiser's step, and what it holds."""
