"""Small worlds: problems that small models can learn on, with teachers and interpreters, named in other packages."""
