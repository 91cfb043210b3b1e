"""One module per tool: how its keys become a recipe."""
