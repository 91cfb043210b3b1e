"""The audit log: entries, their chain of hashes, and what it says of runs, decisions and champions."""
