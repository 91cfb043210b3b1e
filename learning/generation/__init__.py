"""Sampling from models: engines, weight synchronisation, replicas, services."""
