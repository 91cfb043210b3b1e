"""Rows of text between stages: read, written, encoded, curated."""
