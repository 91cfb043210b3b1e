"""The verbs of the command line, grouped as `--help` shows them; each imports what it needs when it is called."""
