"""Runs and steps as MLflow runs; curves in other trackers."""
