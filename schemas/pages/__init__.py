"""Generated documentation and the schema for editors."""
