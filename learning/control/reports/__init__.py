"""What a report says of control policies: metrics, explanations, pictures."""
