"""Indexes over manifests and rows, and their projection into tables."""
