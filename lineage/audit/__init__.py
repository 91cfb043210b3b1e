"""The audit log: entries, their hash chain, and the records of runs, decisions and champions in it."""
