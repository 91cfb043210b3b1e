"""A run under way: its log and states, what it has spent, how it is asked to stop, what it leaves."""
