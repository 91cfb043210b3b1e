"""Gates that stop, branch or ask a person, and the champions that passed them."""
