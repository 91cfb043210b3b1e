"""Rewards that an environment gave while it answered the model's turns."""

from learning.samples.sample import Trial


def earned(trials: list[Trial]) -> list[float | None]:
    """Sum of what the turns of an episode earned; a turn that has not ended has earned nothing."""
    return [float(sum(turn.reward for turn in trial.turns)) for trial in trials]
