"""Generation that goes on beside training: services, and the stream of completions between them and the trainer."""
