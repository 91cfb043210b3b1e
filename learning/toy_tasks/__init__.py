"""Small problem worlds with teachers and interpreters; reached only by recipes that name them."""
