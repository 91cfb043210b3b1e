"""Rewards for the features of a record that a completion names, compared with an expert's weights (EAG-RL 2025).

A row's metadata has `expert`, the weights that an expert gives the features, by their names. A completion names a
feature where its text before the answer holds the name as a whole word. Rows without weights cannot be scored.
"""

import json
import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row
from learning.models.policy import Policy
from learning.rewards.attention import compute_jaccard, select_top
from learning.samples.sample import Sample

Marker = Annotated[str, Field(min_length=1)]


def overlap(
    rows: list[Row], completions: list[str], *, k: Annotated[int, Field(ge=1)] = 2, marker: Marker = "####"
) -> list[float | None]:
    """|C ∩ E| / |C ∪ E| of the features C that a completion names and the expert's top `k`, E (EAG-RL 2025).

    The answer, after the last `marker`, is left out; without a marker the whole text counts.
    """
    scores: list[float | None] = []
    for row, completion in zip(rows, completions, strict=True):
        expert = _read_expert(row)
        named = {name for name, _, _ in _find_names(completion, expert, marker)}
        scores.append(compute_jaccard(named, select_top(expert, k)) if expert else None)
    return scores


def entropy(rows: list[Row], samples: list[Sample], policy: Policy, *, marker: Marker = "####") -> list[float | None]:
    """Mean entropy, in nats, at the tokens in which a completion names features, when they were sampled (EAG-RL 2025).

    For the policy loss `widened_by_entropy`, with weight 0. Where a completion names no feature it is the mean over all
    its tokens; None if the stage does not record entropies.
    """
    scores: list[float | None] = []
    for row, sample in zip(rows, samples, strict=True):
        expert = _read_expert(row)
        marked = find_feature_tokens(policy, sample, expert, marker) or range(sample.given, len(sample.completion_ids))
        values = [sample.entropies[i] for i in marked] if sample.entropies and expert else []
        scores.append(sum(values) / len(values) if values else None)
    return scores


def find_feature_tokens(policy: Policy, sample: Sample, names: Iterable[str], marker: str) -> list[int]:
    """Return the places of the sampled tokens that show a part of a feature's name."""
    spans = _find_names(sample.text, names, marker)
    if not spans:
        return []
    ids = sample.completion_ids
    ends = [len(str(policy.tokenizer.decode(list(ids[: i + 1]), skip_special_tokens=True))) for i in range(len(ids))]
    places = zip([0, *ends[:-1]], ends, strict=True)
    shown = [any(a < end and b > start for _, start, end in spans) for a, b in places]
    return [i for i in range(sample.given, len(ids)) if shown[i]]


def _find_names(text: str, names: Iterable[str], marker: str) -> list[tuple[str, int, int]]:
    """Return every whole word before the last marker that is a name, with its first character and the one after it."""
    reasoning = text.rpartition(marker)[0] if marker in text else text
    found = ((name, re.finditer(rf"(?<!\w){re.escape(name)}(?!\w)", reasoning)) for name in names)
    return [(name, match.start(), match.end()) for name, matches in found for match in matches]


def _read_expert(row: Row) -> dict[str, float]:
    return json.loads(row["metadata"] or "{}").get("expert") or {}
