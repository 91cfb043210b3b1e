"""Slot problems: generators of prompts rows."""
