"""Recipes as Prefect deployments: their forms, schedules and triggers."""
