"""Networks of control policies."""
