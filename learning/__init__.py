"""The algorithms: tensors, engines, rewards, losses. No orchestrator."""
