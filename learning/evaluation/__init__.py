"""Evaluation of policies: sampled answers, metrics, statistics, gates."""
