"""One execution of a plan: what starts when, the states of its steps, its log, gates and spending."""
