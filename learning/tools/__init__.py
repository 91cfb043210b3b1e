"""Tools that a model may call, and what they work with: arithmetic, tables, retrieval."""
