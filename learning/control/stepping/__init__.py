"""How worlds are stepped: their spaces as numbers, several at a time, and what happened as transitions."""
