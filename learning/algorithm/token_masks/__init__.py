"""Slot token_mask: which tokens a term of the loss is about."""
