"""Recipes, loaded and checked."""
