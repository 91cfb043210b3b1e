"""Runs of a plan: start one, go on with one, look at one."""
