"""Rewards for attention to the right features of a prompt, compared with an expert's weights (EAG-RL 2025).

Attention is the mean over layers, heads and the positions that predict a completion's tokens, summed over the tokens of
each feature's text in the prompt, without a gradient. A row whose metadata has no features (`spans`) and expert weights
(`expert`) cannot be scored.
Shapes: N sequences, L longest of them, H heads.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from learning.data.rendering import fill_template, open_dialogue
from learning.data.rows import Row
from learning.models.policy import Policy
from learning.samples.sample import Sample

SCORES = 1 << 24
"""The most attention scores of one layer that are in memory at once."""


def alignment(
    rows: list[Row],
    samples: list[Sample],
    policy: Policy,
    *,
    measure: Literal["mass", "jaccard"] = "mass",
    k: Annotated[int, Field(ge=1)] = 2,
) -> list[float | None]:
    """Attention of the policy on the expert's top `k` features (EAG-RL 2025).

    `mass` is their share of the attention on all features, `jaccard` the overlap of the policy's top k with them.
    """
    scores: list[float | None] = [None] * len(samples)
    scorable: list[tuple[int, Mapping[str, float], Mapping[str, list[int]]]] = []
    for i, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        metadata = json.loads(row["metadata"] or "{}")
        places = find_feature_places(policy, sample, row, metadata.get("spans") or {})
        if places and sample.completion_ids and set(places) == set(metadata.get("expert") or {}):
            scorable.append((i, metadata["expert"], places))
    masses = compute_feature_masses(policy, [samples[i] for i, _, _ in scorable], [places for _, _, places in scorable])
    for (i, expert, _), mass in zip(scorable, masses, strict=True):
        best = select_top(expert, k)
        scores[i] = (
            sum(mass[name] for name in best) if measure == "mass" else compute_jaccard(select_top(mass, k), best)
        )
    return scores


def select_top(values: Mapping[str, float], k: int) -> set[str]:
    """Return the k names with the largest values; ties in alphabetical order."""
    return set(sorted(values, key=lambda name: (-values[name], name))[:k])


def compute_jaccard(some: set[str], others: set[str]) -> float:
    """Return the size of the intersection over that of the union."""
    return len(some & others) / len(some | others) if some | others else 1.0


def find_feature_places(policy: Policy, sample: Sample, row: Row, spans: Mapping[str, str]) -> dict[str, list[int]]:
    """Return the positions in the prompt of each feature's tokens; empty if a text is missing or the ids differ."""
    text = fill_template(policy.tokenizer, open_dialogue(policy.tokenizer, row["prompt"], row), generate=True)
    coded = policy.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    if list(coded["input_ids"]) != list(sample.prompt_ids):
        return {}
    positions: dict[str, list[int]] = {}
    for name, shown in spans.items():
        start = text.find(shown)
        end = start + len(shown)
        positions[name] = [
            p for p, (a, b) in enumerate(coded["offset_mapping"]) if start >= 0 and a < end and b > start
        ]
    return positions if all(positions.values()) else {}


@torch.no_grad()
def compute_feature_masses(
    policy: Policy, samples: Sequence[Sample], places: Sequence[Mapping[str, list[int]]]
) -> list[dict[str, float]]:
    """Return the share of each feature in the attention on all features, for each sample."""
    heads, masses = policy.model.config.num_attention_heads, []
    start = 0
    while start < len(samples):
        end, longest = start, 0
        while end < len(samples):
            longest = max(longest, len(samples[end].prompt_ids) + len(samples[end].completion_ids))
            if end > start and (end + 1 - start) * heads * longest * longest > SCORES:
                break
            end += 1
        masses += _compute_masses(policy, samples[start:end], places[start:end])
        start = end
    return masses


def _compute_masses(
    policy: Policy, samples: Sequence[Sample], places: Sequence[Mapping[str, list[int]]]
) -> list[dict[str, float]]:
    sequences = [[*t.prompt_ids, *t.completion_ids] for t in samples]
    longest = max(map(len, sequences))
    # Padding is on the right, where causal attention does not look.
    ids_NL = torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences], device=policy.model.device)
    config = policy.model.config
    implementation = config._attn_implementation
    config._attn_implementation = "eager"
    try:
        layers = policy.model(input_ids=ids_NL, output_attentions=True, use_cache=False).attentions
    finally:
        config._attn_implementation = implementation
    mean_NLL = torch.stack([layer_NHLL.double().mean(1) for layer_NHLL in layers]).mean(0)
    masses = []
    for attention_LL, sample, of_features, ids in zip(mean_NLL, samples, places, sequences, strict=True):
        mean_L = attention_LL[len(sample.prompt_ids) - 1 : len(ids) - 1].mean(0)
        mass = {name: float(mean_L[positions].sum()) for name, positions in of_features.items()}
        total = sum(mass.values())
        masses.append({name: value / total if total else 0.0 for name, value in mass.items()})
    return masses
