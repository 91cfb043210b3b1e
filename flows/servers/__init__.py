"""Prefect's server, and the services that `posttrain up` keeps running."""
