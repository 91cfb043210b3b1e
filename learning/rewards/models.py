"""Learned rewards: the score of a reward model for a completion, or of a process reward model for its tokens."""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from learning.auxiliary_networks.action_values import ActionValues, load_action_values
from learning.auxiliary_networks.heads import TokenJudge, load_token_judge
from learning.batch.batch_layout import single_turn
from learning.data.chat import encode_answer, encode_prompt
from learning.data.rendering import Messages
from learning.data.rows import Row
from learning.data.steps import encode_steps, split_steps
from learning.data.turns import encode_conversation
from learning.models.model_files import NO_SCALE
from learning.models.policy import Policy
from learning.models.reward_model import RewardModel, load_reward_model
from learning.samples.engine_protocol import Generation
from schemas.errors import StepError
from schemas.references import ActionValuesRef, ProcessRewardModelRef, RewardModelRef

TOKENS = 16_384
"""Tokens per forward."""
Encoder = Callable[..., tuple[list[int], list[int]]]
"""Prompt and completion as token ids, from tokenizer, messages of both and their row."""
STATISTICS: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "product": math.prod,
    "mean": lambda values: sum(values) / len(values),
    "last": lambda values: values[-1],
    "sum": sum,
}
"""Functions from the values of steps or tokens to the score of a completion."""


def learned(
    rows: list[Row],
    completions: list[str],
    *,
    model: RewardModelRef,
    normalise: Literal["none", "standard", "sigmoid"] = "none",
) -> list[float | None]:
    """Score of a reward model; None if prompt and completion are longer than it was trained for.

    The model is the output of a reward_model stage or a sequence classifier of transformers with one label; such a
    classifier reads the whole conversation as its own chat template renders it. `standard` subtracts the mean and
    divides by the standard deviation of the held-out pairs that the model was tested on; `sigmoid` maps that to (0, 1),
    for sums with verifiable rewards.
    """
    judge = load_cached_reward_model(str(model))
    encode = encode_answer if judge.scale else encode_whole
    scores: list[float | None] = [None] * len(rows)
    for batch in _make_batches(_group_by_prompt(judge.policy, rows, completions, encode)):
        places = [i for _, answers in batch for i, _ in answers]
        with torch.no_grad():
            rewards_P = judge.rewards([p for p, _ in batch], [[ids for _, ids in answers] for _, answers in batch])
        for i, reward in zip(places, rewards_P.double().tolist(), strict=True):
            scores[i] = normalise_reward(reward, judge, normalise)
    return scores


def process(
    rows: list[Row],
    completions: list[str],
    *,
    model: ProcessRewardModelRef,
    stat: Literal["min", "product", "mean", "last", "sum"] = "min",
    separator: str | None = None,
) -> list[float | None]:
    """Minimum, product, mean, last or sum of a process reward model's rewards; None if the completion is too long.

    A model of a process_reward_model stage gives each step the probability that it is right; other models reward every
    token. With `min` a completion is as good as its worst step; `product` is the probability that all steps are right.
    Use `last` for a model trained on outcomes, whose last value predicts the outcome, and `sum` for one by likelihood.
    Steps of a completion lie between `separator`s (null: the one that the model was trained with).
    """
    judge = load_process_reward_model(str(model))
    if separator is not None and judge.separator is None:
        raise StepError("models.process: this model rewards every token and has no steps; remove `separator`")
    scores: list[float | None] = [None] * len(rows)
    summarise = STATISTICS[stat]
    encode, ends = _make_step_encoder(judge, separator)
    for batch in _make_batches(_group_by_prompt(judge.policy, rows, completions, encode)):
        places = [i for _, answers in batch for i, _ in answers]
        answered = [[Generation(ids, [0.0] * len(ids), "stop") for _, ids in answers] for _, answers in batch]
        record = single_turn([prompt for prompt, _ in batch], answered)
        values = judge.rewards(record).double().cpu().split(record.path_T.bincount().tolist())
        for i, value_T in zip(places, values, strict=True):
            chosen_T = value_T if judge.separator is None else value_T[ends[completions[i]]]
            scores[i] = float(summarise(chosen_T.tolist()))
    return scores


def action_values(
    rows: list[Row],
    completions: list[str],
    *,
    model: ActionValuesRef,
    stat: Literal["min", "mean", "last", "sum"] = "last",
    of: Literal["q", "advantage"] = "q",
) -> list[float | None]:
    """Q of a completion's tokens, or Q − V: the last, mean, sum or least of them; None if the completion is too long.

    The last token ends the completion, so that its Q predicts the reward of the whole. The model is the output of a
    stage of kind action_values; as a `selector` it ranks the samples of a problem (B-Coder, Yu et al. 2024).
    """
    network, policy = load_cached_action_values(str(model))
    scores: list[float | None] = [None] * len(rows)
    summarise = STATISTICS[stat]
    for batch in _make_batches(_group_by_prompt(policy, rows, completions, encode_answer)):
        places = [i for _, answers in batch for i, _ in answers]
        answered = [[Generation(ids, [0.0] * len(ids), "stop") for _, ids in answers] for _, answers in batch]
        record = single_turn([prompt for prompt, _ in batch], answered)
        values_T = network.value_tokens(record, minus_state=of == "advantage").double().cpu()
        for i, own_T in zip(places, values_T.split(record.path_T.bincount().tolist()), strict=True):
            scores[i] = float(summarise(own_T.tolist()))
    return scores


@lru_cache(maxsize=4)
def load_cached_action_values(folder: str) -> tuple[ActionValues, Policy]:
    """Return the values of tokens in a folder with their tokenizer, cached: an artifact never changes."""
    return load_action_values(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")


def _make_step_encoder(judge: TokenJudge, separator: str | None) -> tuple[Encoder, dict[str, list[int]]]:
    """Return what encodes prompt and completion for a model, and the ends of steps that it notes by completion."""
    ends: dict[str, list[int]] = {}
    trained_with = judge.separator
    if trained_with is None:
        return encode_answer, ends

    def encode(
        tokenizer: PreTrainedTokenizerBase, prompt: Messages, completion: Messages, row: Row | None = None
    ) -> tuple[list[int], list[int]]:
        text = completion[0]["content"]
        steps = encode_steps(tokenizer, prompt, split_steps(text, separator or trained_with), trained_with, row)
        ends[text] = steps.ends
        return steps.prompt, steps.completion

    return encode, ends


@lru_cache(maxsize=4)
def load_process_reward_model(folder: str) -> TokenJudge:
    """Return the process reward model in a folder, cached: an artifact never changes."""
    return load_token_judge(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")


def encode_whole(
    tokenizer: PreTrainedTokenizerBase, prompt: Messages, completion: Messages, row: Row | None = None
) -> tuple[list[int], list[int]]:
    """Return the ids of a rendered conversation, parted after the longest beginning that its prompt shares with it.

    Other than `encode_answer` it ends with everything that the template writes, as reward models from outside were
    trained.
    """
    whole = encode_conversation(tokenizer, prompt, completion, row=row).ids
    given = encode_prompt(tokenizer, prompt, row)
    shared = next((i for i, (one, other) in enumerate(zip(whole, given, strict=False)) if one != other), len(given))
    return whole[:shared], whole[shared:]


def _group_by_prompt(
    policy: Policy, rows: list[Row], completions: list[str], encode: Encoder
) -> dict[tuple[int, ...], list[tuple[int, list[int]]]]:
    """Return completions with their indices, by prompt, without those longer than the model was trained for."""
    groups: dict[tuple[int, ...], list[tuple[int, list[int]]]] = defaultdict(list)
    for i, (row, completion) in enumerate(zip(rows, completions, strict=True)):
        messages = [{"role": "assistant", "content": completion}]
        prompt, answer = encode(policy.tokenizer, row["prompt"], messages, row)
        if len(prompt) + len(answer) <= policy.max_length:
            groups[tuple(prompt)].append((i, answer))
    return groups


@lru_cache(maxsize=4)
def load_cached_reward_model(folder: str) -> RewardModel:
    """Return the reward model in a folder, cached: an artifact never changes."""
    return load_reward_model(Path(folder), device="cuda" if torch.cuda.is_available() else "cpu")


def _make_batches(groups: dict[tuple[int, ...], list[tuple[int, list[int]]]]) -> list[list[tuple[list[int], list]]]:
    """Return prompts with their completions in batches of about `TOKENS` tokens."""
    batches: list[list[tuple[list[int], list]]] = []
    room = 0
    for prompt, answers in groups.items():
        size = len(prompt) + sum(len(ids) for _, ids in answers)
        if not batches or size > room:
            batches.append([])
            room = TOKENS
        batches[-1].append((list(prompt), answers))
        room -= size
    return batches


def normalise_reward(reward: float, judge: RewardModel, how: str) -> float:
    """Return a reward on the requested scale; raise StepError if that of the model is unknown."""
    if how == "none":
        return reward
    if judge.scale is None:
        raise StepError(f"models.learned: {NO_SCALE}")
    standard = (reward - judge.scale.mean) / max(judge.scale.std, 1e-6)
    return standard if how == "standard" else (1 + math.tanh(standard / 2)) / 2
