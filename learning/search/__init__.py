"""Choosing settings by trials."""
