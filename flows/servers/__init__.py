"""Prefect's server and its pages, and the services that `posttrain up` keeps running."""
