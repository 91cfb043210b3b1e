"""Search in the tree of an environment's states."""
