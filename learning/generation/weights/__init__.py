"""Weight synchronisation between a trainer and engines."""
