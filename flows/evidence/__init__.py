"""Outcomes of recipes over seeds: `posttrain evidence`."""
