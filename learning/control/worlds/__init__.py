"""Small worlds with known best actions or values."""
