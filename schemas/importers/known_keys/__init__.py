"""The keys that each tool knows, from its documentation and its settings classes."""
