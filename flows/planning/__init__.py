"""From a recipe to a plan: keys, differences from earlier runs, costs and memory."""
