"""Champions: promotion after gates that passed, and the committed recipe it is checked against."""
