"""Rewards that weigh an answer against the effort with which it was reached."""

from typing import Annotated, Literal

from pydantic import Field

from learning.data.turn_tags import split_tag
from learning.lookup import Inner, RewardFunction
from learning.rewards.composite import score_selected
from learning.samples.engine_protocol import hash_name
from learning.samples.sample import Sample


def needed(
    samples: list[Sample],
    groups: list[int],
    *,
    of: RewardFunction,
    cheap: str,
    exponent: Annotated[float, Field(gt=0)] = 2.0,
    among: Literal["cheap", "group"] = "cheap",
    at_least: float = 1.0,
) -> list[float | None]:
    """The reward `of` where the tag `cheap` begins, times 1 − p^exponent where another one does (A²FM 2025).

    p is how often the cheap way is right: the share of the group's completions that begin with the tag `cheap` whose
    reward `of` is at least `at_least`, or with `among: group` the share of all of them; 0 where there is none. So
    effort pays only where it is needed. The tag is that of the first turn (environment `tagged`), or of the text.
    """
    task: Inner = of
    scores = score_selected(task, range(len(samples)))
    is_cheap = [_begins_with(sample, cheap) for sample in samples]
    judged: dict[int, list[bool]] = {}
    for group, score, light in zip(groups, scores, is_cheap, strict=True):
        if score is not None and (light or among == "group"):
            judged.setdefault(group, []).append(score >= at_least)
    results: list[float | None] = []
    for group, score, light in zip(groups, scores, is_cheap, strict=True):
        right = judged.get(group, [])
        rate = sum(right) / len(right) if right else 0.0
        results.append(score if score is None or light else score * (1 - rate**exponent))
    return results


def price(
    samples: list[Sample], *, prices: Annotated[dict[str, float], Field(min_length=1)], otherwise: float = 0.0
) -> list[float | None]:
    """Return what a way of answering costs: the price of the tag that begins, and `otherwise` for any other beginning.

    As the only reward of an evaluation with the metric `mean_score` it measures what a model spends on its answers.
    """
    known = [next((prices[tag] for tag in prices if _begins_with(sample, tag)), otherwise) for sample in samples]
    return [float(one) for one in known]


def _begins_with(sample: Sample, tag: str) -> bool:
    """Return whether the first turn of a sample begins with a tag."""
    if sample.turns:
        return sample.turns[0].kind == hash_name(tag)
    return split_tag(sample.text)[0] == tag
