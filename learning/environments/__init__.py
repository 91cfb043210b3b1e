"""Environments: what answers a model's turns. One file each with one class `Environment`; `env:` of a stage names it."""
