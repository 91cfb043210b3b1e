"""Slot policy_loss: per-token policy-gradient losses."""
