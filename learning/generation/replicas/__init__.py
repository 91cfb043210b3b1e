"""Engines in workers of their own."""
