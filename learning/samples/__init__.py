"""Requests, completions and scored samples: the records that sampling passes on."""
