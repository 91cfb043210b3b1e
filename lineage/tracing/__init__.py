"""Ancestors and descendants of artifacts and rows."""
