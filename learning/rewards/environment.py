"""Rewards that an environment gave while it answered the model's turns."""

from learning.samples.sample import Sample


def earned(samples: list[Sample]) -> list[float | None]:
    """Sum of what the turns of an episode earned; a turn that has not ended has earned nothing."""
    return [float(sum(turn.reward for turn in sample.turns)) for sample in samples]
