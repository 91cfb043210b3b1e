"""What an evaluation asks of models and concludes from their answers."""
