"""Preference pairs as token ids: encoding, the split by prompt, and the batches of every step."""

import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from learning.chat import encode_completion, encode_prompt
from schemas.errors import StepError


@dataclass(frozen=True)
class Pair:
    """One prompt with a chosen and a rejected completion, as token ids; `margin` is None where the row has none."""

    id: str
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    margin: float | None

    @property
    def size(self) -> int:
        """Tokens when the prompt is stored once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


def encode_pairs(tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]], max_length: int) -> list[Pair]:
    """The rows of which both sides fit into `max_length` tokens with their prompt."""
    pairs = []
    for row in rows:
        prompt = encode_prompt(tokenizer, row["prompt"])
        chosen, rejected = (encode_completion(tokenizer, row[side]) for side in ("chosen", "rejected"))
        if len(prompt) + max(len(chosen), len(rejected)) <= max_length:
            pairs.append(Pair(row["id"], prompt, chosen, rejected, row["margin"]))
    return pairs


def split_by_prompt(pairs: list[Pair], fraction: float) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and held-out pairs: those of the prompts whose hash is among the smallest `fraction`.

    A prompt lies wholly on one side, whatever the seed; at least one prompt is on each. Raises StepError when there
    are not two prompts.
    """
    order = {p: hashlib.sha256(json.dumps(p).encode()).hexdigest() for p in {tuple(pair.prompt) for pair in pairs}}
    if len(order) < 2:
        raise StepError(
            f"reward_model: {len(order)} distinct prompt(s) among the pairs that fit, at least 2 are needed to hold "
            "one out; give more data or raise max_length"
        )
    number = min(max(1, round(fraction * len(order))), len(order) - 1)
    held_out = set(sorted(order, key=lambda prompt: order[prompt])[:number])
    return (
        [pair for pair in pairs if tuple(pair.prompt) not in held_out],
        [pair for pair in pairs if tuple(pair.prompt) in held_out],
    )


def total_steps(num_pairs: int, batch_size: int, epochs: float, max_steps: int) -> int:
    """Optimiser steps: `max_steps`, or with -1 enough for `epochs` passes."""
    return max_steps if max_steps >= 0 else math.ceil(epochs * math.ceil(num_pairs / batch_size))


def batch_at(step: int, num_pairs: int, batch_size: int, seed: int) -> list[int]:
    """Indices of a step's pairs (0-based step): each pass in an order of its own, drawn from the seed and the pass."""
    per_epoch = math.ceil(num_pairs / batch_size)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng([seed, epoch]).permutation(num_pairs)
    return order[place * batch_size : (place + 1) * batch_size].tolist()


def by_tokens(pairs: list[Pair], max_tokens: int) -> list[list[Pair]]:
    """Consecutive pairs in groups of at most `max_tokens` tokens (a longer pair is alone)."""
    groups: list[list[Pair]] = []
    for pair in pairs:
        if groups and sum(p.size for p in groups[-1]) + pair.size <= max_tokens:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups
