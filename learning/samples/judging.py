"""What plans, follow-ups and sources read off raw scores: which groups all failed, and whose scores differ."""

from collections.abc import Iterable

from learning.samples.sample import Sample
from schemas.errors import StepError


def judged(samples: Iterable[Sample], reward: str | None = None) -> list[float]:
    """Raw scores of samples by one reward (null: the stage's first); those that could not be scored are left out.

    Raises StepError for a reward that the stage does not have.
    """
    scores = []
    for sample in samples:
        name = reward or next(iter(sample.scores), None)
        if name is not None and name not in sample.scores:
            raise StepError(f"no reward {name!r} in this stage; it has: {', '.join(sample.scores)}")
        if name is not None and (score := sample.scores[name]) is not None:
            scores.append(score)
    return scores


def failed(samples: Iterable[Sample], reward: str | None = None, at_least: float = 1.0) -> bool:
    """Whether every sample that could be scored is below `at_least`; False where none could be."""
    scores = judged(samples, reward)
    return bool(scores) and max(scores) < at_least


def passed(sample: Sample, reward: str | None = None, at_least: float = 1.0) -> bool:
    """Whether a sample's score is at least `at_least`."""
    return any(score >= at_least for score in judged([sample], reward))


def spread(samples: Iterable[Sample], reward: str | None = None) -> float:
    """Population deviation of the scores, exactly 0 where they are equal."""
    scores = judged(samples, reward)
    if not scores or min(scores) == max(scores):
        return 0.0
    mean = sum(scores) / len(scores)
    return (sum((s - mean) ** 2 for s in scores) / len(scores)) ** 0.5
