"""Queries, comparison, export, exchange and removal of runs and artifacts."""
