"""Slots of the RL algorithm that compute on columns, from rewards to the loss."""
