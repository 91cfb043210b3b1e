"""Which artifacts stay when a checkout is cleaned."""
