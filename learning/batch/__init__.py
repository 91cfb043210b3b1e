"""One packed batch of sampled paths, and columns of numbers over its tokens and paths."""
