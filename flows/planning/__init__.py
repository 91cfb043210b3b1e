"""A plan before it runs: its keys, what differs from before, what it costs and needs."""
