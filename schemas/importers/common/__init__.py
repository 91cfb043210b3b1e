"""What the importers of several tools share: leaves, drafts, references and keys of training."""
