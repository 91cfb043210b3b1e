"""What happens around trainings: rounds with a language model, teachers of tasks, sets of worlds."""
