"""Tools that a model may call, and their implementation: arithmetic, tables, retrieval."""
