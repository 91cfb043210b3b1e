"""One step in many processes: groups that train, replicas that generate, pools that score, weights between them."""
