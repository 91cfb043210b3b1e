"""One step, and the processes it runs in."""
