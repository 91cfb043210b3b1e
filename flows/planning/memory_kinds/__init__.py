"""Memory that a step of each kind needs: `estimate` in `<kind>.py`, found by the name of the kind."""
