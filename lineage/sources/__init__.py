"""Sources from outside a recipe: files, hub repositories, registered models."""
