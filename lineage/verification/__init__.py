"""Checks that artifacts, indexes and the audit log still hold."""
