"""The commands of `posttrain`, grouped as `--help` shows them; each imports what it needs when it is called."""
