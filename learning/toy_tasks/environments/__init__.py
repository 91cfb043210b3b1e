"""Environments of toy tasks."""
