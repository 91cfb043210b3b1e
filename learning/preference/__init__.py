"""Training on preference pairs: their tokens, columns and losses."""
