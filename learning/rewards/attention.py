"""Rewards for looking at the right things: where the policy's attention lies while it writes, beside an expert's.

Attention is the mean over layers, heads and the places that predict a completion's tokens, summed over the tokens of
each feature's text in the prompt. It is read without a gradient. A row whose metadata names no features (`spans`) and
no expert's view of them (`expert`) cannot be scored.
Shapes: N sequences, L longest of them, H heads.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from learning.models.policy import Policy
from learning.samples.sample import Sample

Row = dict[str, Any]
SCORES = 1 << 24
"""Attention scores of one layer that are alive at once."""


def alignment(
    rows: list[Row],
    samples: list[Sample],
    policy: Policy,
    *,
    measure: Literal["mass", "jaccard"] = "mass",
    k: Annotated[int, Field(ge=1)] = 2,
) -> list[float | None]:
    """How far the policy looks at what the expert looks at most: the expert's top `k` features (EAG-RL 2025).

    `mass` is their share of the attention on all features, `jaccard` the overlap of the policy's top k with them.
    """
    found: list[float | None] = [None] * len(samples)
    known: list[tuple[int, Mapping[str, float], Mapping[str, list[int]]]] = []
    for i, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        told = json.loads(row["metadata"] or "{}")
        places = places_of(policy, sample, row, told.get("spans") or {})
        if places and sample.completion_ids and set(places) == set(told.get("expert") or {}):
            known.append((i, told["expert"], places))
    masses = feature_masses(policy, [samples[i] for i, _, _ in known], [places for _, _, places in known])
    for (i, expert, _), mass in zip(known, masses, strict=True):
        best = top(expert, k)
        found[i] = sum(mass[name] for name in best) if measure == "mass" else jaccard(top(mass, k), best)
    return found


def top(values: Mapping[str, float], k: int) -> set[str]:
    """The k names with the largest values; of equals the first in the alphabet."""
    return set(sorted(values, key=lambda name: (-values[name], name))[:k])


def jaccard(some: set[str], others: set[str]) -> float:
    """Size of the common part over that of the union."""
    return len(some & others) / len(some | others) if some | others else 1.0


def places_of(policy: Policy, sample: Sample, row: Row, spans: Mapping[str, str]) -> dict[str, list[int]]:
    """Places in the prompt of the tokens that show each feature; empty where a text is not there or the ids differ."""
    text = policy.tokenizer.apply_chat_template(row["prompt"], tokenize=False, add_generation_prompt=True)
    coded = policy.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if list(coded["input_ids"]) != list(sample.prompt_ids):
        return {}
    found: dict[str, list[int]] = {}
    for name, shown in spans.items():
        start = text.find(shown)
        end = start + len(shown)
        found[name] = [p for p, (a, b) in enumerate(coded["offset_mapping"]) if start >= 0 and a < end and b > start]
    return found if all(found.values()) else {}


@torch.no_grad()
def feature_masses(
    policy: Policy, samples: Sequence[Sample], places: Sequence[Mapping[str, list[int]]]
) -> list[dict[str, float]]:
    """Share of each feature in the attention on all features, while each sample's completion is written."""
    heads, found = policy.model.config.num_attention_heads, []
    start = 0
    while start < len(samples):
        end, longest = start, 0
        while end < len(samples):
            longest = max(longest, len(samples[end].prompt_ids) + len(samples[end].completion_ids))
            if end > start and (end + 1 - start) * heads * longest * longest > SCORES:
                break
            end += 1
        found += _masses(policy, samples[start:end], places[start:end])
        start = end
    return found


def _masses(
    policy: Policy, samples: Sequence[Sample], places: Sequence[Mapping[str, list[int]]]
) -> list[dict[str, float]]:
    sequences = [[*t.prompt_ids, *t.completion_ids] for t in samples]
    longest = max(map(len, sequences))
    # Padding stands behind, where causal attention does not look.
    ids_NL = torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences], device=policy.model.device)
    config = policy.model.config
    before = config._attn_implementation
    config._attn_implementation = "eager"
    try:
        layers = policy.model(input_ids=ids_NL, output_attentions=True, use_cache=False).attentions
    finally:
        config._attn_implementation = before
    mean_NLL = torch.stack([layer_NHLL.double().mean(1) for layer_NHLL in layers]).mean(0)
    found = []
    for attention_LL, sample, of_features, ids in zip(mean_NLL, samples, places, sequences, strict=True):
        at_L = attention_LL[len(sample.prompt_ids) - 1 : len(ids) - 1].mean(0)
        mass = {name: float(at_L[where].sum()) for name, where in of_features.items()}
        total = sum(mass.values())
        found.append({name: value / total if total else 0.0 for name, value in mass.items()})
    return found
