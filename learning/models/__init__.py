"""Networks: loading, forward passes, optimisation and checkpoints."""
