"""Preference pairs as token ids: encoding, the split by prompt, and groups that fit into one forward."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

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
    metadata: str | None = None
    """JSON text of whoever made the pair."""

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
            pairs.append(Pair(row["id"], prompt, chosen, rejected, row["margin"], row["metadata"]))
    return pairs


def split_by_prompt(pairs: list[Pair], fraction: float) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and held-out pairs: those of the prompts whose hash is among the smallest `fraction`.

    A prompt lies wholly on one side, whatever the seed; at least one prompt is on each. Raises StepError when there
    are not two prompts.
    """
    order = {p: hashlib.sha256(json.dumps(p).encode()).hexdigest() for p in {tuple(pair.prompt) for pair in pairs}}
    if len(order) < 2:
        raise StepError(
            f"data: {len(order)} distinct prompt(s) among the pairs that fit, at least 2 are needed to hold one out; "
            "give more data or raise max_length"
        )
    number = min(max(1, round(fraction * len(order))), len(order) - 1)
    held_out = set(sorted(order, key=lambda prompt: order[prompt])[:number])
    return (
        [pair for pair in pairs if tuple(pair.prompt) not in held_out],
        [pair for pair in pairs if tuple(pair.prompt) in held_out],
    )


def by_tokens(pairs: list[Pair], max_tokens: int) -> list[list[Pair]]:
    """Consecutive pairs in groups of at most `max_tokens` tokens (a longer pair is alone)."""
    groups: list[list[Pair]] = []
    for pair in pairs:
        if groups and sum(p.size for p in groups[-1]) + pair.size <= max_tokens:
            groups[-1].append(pair)
        else:
            groups.append([pair])
    return groups
