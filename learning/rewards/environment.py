"""Rewards that an environment gave during an episode."""

from learning.samples.sample import Trial


def earned(trials: list[Trial]) -> list[float | None]:
    """Sum of the rewards of an episode's turns; an unfinished turn has reward 0."""
    return [float(sum(turn.reward for turn in trial.turns)) for trial in trials]
