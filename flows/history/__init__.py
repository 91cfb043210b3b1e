"""What was made: queried, compared, exported, exchanged, cleared."""
