"""YAML text with places: parsing, merging, variables and limits."""
