"""Small problem worlds with teachers and interpreters; used only by recipes that name them."""
