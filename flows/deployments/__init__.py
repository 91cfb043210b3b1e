"""Recipes as Prefect's deployments: their forms, schedules and what starts them."""
