"""Slot loss_aggregation: the weight of each token in the loss."""
