"""Rows of files in any supported format, as posttrain's own rows."""
