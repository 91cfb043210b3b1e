"""The steps that a loss is trained on, and which of them a batch has."""
