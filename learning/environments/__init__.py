"""Environments, which answer the turns of a model. One file each, with one class `Environment`; `env:` names it."""
