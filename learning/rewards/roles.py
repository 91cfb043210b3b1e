"""Rewards of episodes that several roles share.

Any other reward scores each role by what it said last. These let roles share a score, or score one role only. Where a
score that is needed does not exist, neither does the sum.
"""

from statistics import fmean
from typing import Literal

from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.samples.conversation import RoleSample, list_conversations
from learning.samples.sample import Sample
from schemas.errors import StepError


def outcome(samples: list[Sample], *, of: RewardFunction, role: str | None = None) -> list[float | None]:
    """Score the episode by what one role said last, the same for all roles: the reward `of` of this text.

    `role` is that role; null: the one that spoke last of those that a policy plays. An episode in which `role` has not
    spoken has no score.
    """
    chosen = {
        number: _find_speaker(of_episode, role) for number, of_episode in list_conversations(_of_roles(samples)).items()
    }
    places = {id(sample): place for place, sample in enumerate(samples)}
    deciding = [places[id(sample)] for sample in chosen.values() if sample is not None]
    task: Inner = of
    scores = dict(zip(deciding, score_selected(task, deciding), strict=True))
    by_episode = {n: None if s is None else scores[places[id(s)]] for n, s in chosen.items()}
    return [by_episode[sample.conversation] for sample in _of_roles(samples)]


def total(samples: list[Sample], *, of: RewardFunction) -> list[float | None]:
    """Sum of the reward `of` over all roles of the episode, the same for each of them."""
    task: Inner = of
    scores = score_selected(task, range(len(samples)))
    parts: dict[int, list[float | None]] = {}
    for sample, score in zip(_of_roles(samples), scores, strict=True):
        parts.setdefault(sample.conversation, []).append(score)
    sums = {number: None if None in own else sum(s for s in own if s is not None) for number, own in parts.items()}
    return [sums[sample.conversation] for sample in _of_roles(samples)]


def only(samples: list[Sample], *, of: RewardFunction, role: str) -> list[float | None]:
    """The reward `of` for the samples of `role`, and 0 for all others."""
    places = [place for place, sample in enumerate(_of_roles(samples)) if sample.role == role]
    results: list[float | None] = [0.0] * len(samples)
    task: Inner = of
    for place, score in zip(places, score_selected(task, places), strict=True):
        results[place] = score
    return results


def downstream(
    samples: list[Sample],
    *,
    of: RewardFunction,
    role: str,
    solver: str,
    share: Literal["success", "failure"] = "success",
    otherwise: float | None = None,
) -> list[float | None]:
    """Score `role` by what others achieve with its words: mean of `of` over the attempts of `solver` in the episode.

    `share: failure` is 1 minus that mean, for a role that sets tasks. Attempts themselves, and all other roles, are
    scored by `of`. In an episode without an attempt `role` is scored `otherwise` (null: it has no score), such as a
    penalty for a task that could not be tried; where attempts have no score, neither has `role`.
    """
    owned = _of_roles(samples)
    judged = [place for place, sample in enumerate(owned) if sample.role != role]
    results: list[float | None] = [None] * len(samples)
    task: Inner = of
    for place, score in zip(judged, score_selected(task, judged), strict=True):
        results[place] = score
    achieved: dict[int, list[float]] = {}
    for sample, score in zip(owned, results, strict=True):
        if sample.role == solver:
            achieved.setdefault(sample.conversation, []).extend([] if score is None else [score])
    for place, sample in enumerate(owned):
        if sample.role == role and sample.conversation not in achieved:
            results[place] = otherwise
        elif sample.role == role and achieved[sample.conversation]:
            mean = fmean(achieved[sample.conversation])
            results[place] = mean if share == "success" else 1 - mean
    return results


def _of_roles(samples: list[Sample]) -> list[RoleSample]:
    """Return the samples. Raise StepError if the stage has no roles."""
    own = [sample for sample in samples if isinstance(sample, RoleSample)]
    if len(own) < len(samples):
        raise StepError("reward roles: this stage has no `roles`; use the reward itself")
    return own


def _find_speaker(samples: list[RoleSample], role: str | None) -> RoleSample | None:
    """Return the sample of a role, its last attempt, or that of the one that spoke last; None without any."""
    spoken = [sample for sample in samples if role is None or sample.role == role]
    return max(spoken, key=lambda sample: sample.places[-1], default=None)
