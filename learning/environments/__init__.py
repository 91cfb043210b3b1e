"""Environments: what answers the turns of a model. One file each, with one class `Environment`; `env:` names it."""
