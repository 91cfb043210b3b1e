"""What was made: asked about, compared, exported, exchanged, cleared away."""
