"""Rows of text between stages: read, written, encoded; tokenizers and chat templates."""
