"""Registered models in MLflow and their champions."""
