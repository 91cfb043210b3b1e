"""Runs and steps as MLflow runs."""
