"""Runs as Prefect shows them: the flow, its pages, and the form for approvals."""
