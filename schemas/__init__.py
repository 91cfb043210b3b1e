"""Recipes, plans and manifests as frozen pydantic values. No torch, ray, prefect or mlflow."""
