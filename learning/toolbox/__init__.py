"""What tools do their work with: arithmetic by a parser of its own words, tables that cannot be written to."""
