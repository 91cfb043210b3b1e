"""Learned rewards: what a reward model says of a completion."""

import math
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from learning.chat import encode_prompt
from learning.reward_model import RewardModel, load_reward_model
from schemas.references import RewardModelRef

TOKENS = 16_384
"""Tokens per forward."""


def learned(
    rows: list[dict[str, Any]],
    completions: list[str],
    *,
    model: RewardModelRef,
    normalise: Literal["none", "standard", "sigmoid"] = "none",
) -> list[float | None]:
    """Reward of a reward model; None where prompt and completion are longer than it was trained for.

    `standard` subtracts the mean and divides by the standard deviation of the held-out pairs the model was tested on;
    `sigmoid` squashes that into (0, 1), so that it mixes with verifiable rewards.
    """
    judge = loaded(str(model))
    tokenizer, longest = judge.policy.tokenizer, judge.policy.max_length
    found: list[float | None] = [None] * len(rows)
    groups: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
    for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
        prompt = encode_prompt(tokenizer, row["prompt"])
        answer = [*tokenizer.encode(completion, add_special_tokens=False), tokenizer.eos_token_id]
        if len(prompt) + len(answer) <= longest:
            groups[tuple(prompt)].append((i, answer))
    for batch in _batches(groups):
        places = [i for _, answers in batch for i, _ in answers]
        with torch.no_grad():
            rewards_P = judge.rewards([p for p, _ in batch], [[ids for _, ids in answers] for _, answers in batch])
        for i, reward in zip(places, rewards_P.double().tolist(), strict=True):
            found[i] = normalised(reward, judge, normalise)
    return found


@lru_cache(maxsize=4)
def loaded(folder: str) -> RewardModel:
    """The reward model in a folder, kept: its artifact never changes."""
    return load_reward_model(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")


def _batches(groups: dict[tuple[int, ...], list[tuple[int, list[int]]]]) -> list[list[tuple[list[int], list]]]:
    """Prompts with their completions, in forwards of about `TOKENS` tokens."""
    made: list[list[tuple[list[int], list]]] = []
    room = 0
    for prompt, answers in groups.items():
        size = len(prompt) + sum(len(ids) for _, ids in answers)
        if not made or size > room:
            made.append([])
            room = TOKENS
        made[-1].append((list(prompt), answers))
        room -= size
    return made


def normalised(reward: float, judge: RewardModel, how: str) -> float:
    """The reward on the scale asked for."""
    if how == "none":
        return reward
    standard = (reward - judge.scale.mean) / max(judge.scale.std, 1e-6)
    return standard if how == "standard" else (1 + math.tanh(standard / 2)) / 2
