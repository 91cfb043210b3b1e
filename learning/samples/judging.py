"""What plans, follow-ups and sources read off raw scores: which groups all failed, and whose scores differ."""

from collections.abc import Iterable

from learning.samples.sample import Trial
from schemas.errors import StepError


def judged(trials: Iterable[Trial], reward: str | None = None) -> list[float]:
    """Raw scores of trials by one reward (null: the stage's first); those that could not be scored are left out.

    Raises StepError for a reward that the stage does not have.
    """
    found = []
    for trial in trials:
        name = reward or next(iter(trial.scores), None)
        if name is not None and name not in trial.scores:
            raise StepError(f"no reward {name!r} in this stage; it has: {', '.join(trial.scores)}")
        if name is not None and (score := trial.scores[name]) is not None:
            found.append(score)
    return found


def failed(trials: Iterable[Trial], reward: str | None = None, at_least: float = 1.0) -> bool:
    """Whether every trial that could be scored is below `at_least`; False where none could be."""
    scores = judged(trials, reward)
    return bool(scores) and max(scores) < at_least


def passed(trial: Trial, reward: str | None = None, at_least: float = 1.0) -> bool:
    """Whether a trial's score is at least `at_least`."""
    return any(score >= at_least for score in judged([trial], reward))


def spread(trials: Iterable[Trial], reward: str | None = None) -> float:
    """Population deviation of the scores, exactly 0 where they are equal."""
    scores = judged(trials, reward)
    if not scores or min(scores) == max(scores):
        return 0.0
    mean = sum(scores) / len(scores)
    return (sum((s - mean) ** 2 for s in scores) / len(scores)) ** 0.5
