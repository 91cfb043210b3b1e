"""Scores of rows by models: perplexity, instruction-following difficulty, rewards and judges.

A score is `fn(rows, *, options) -> list[float | None]` over the rows of a block; None where a row has no score.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.api.spending import SpendingAccount
from learning.data.chat import encode_answer, encode_text
from learning.data.messages import PLAIN
from learning.data.rows import Row, read_metadata
from learning.lookup import RewardFunction
from learning.samples.engine_protocol import Sampling
from learning.sampling.sampler import Sampler
from learning.sampling.scoring import scores_of
from learning.sampling.verdicts import guest, logprobs, replies
from schemas.errors import StepError
from schemas.number_schedules import value_at
from schemas.references import PolicyRef

Side = Literal["chosen", "rejected"]
Pair = tuple[list[int], list[int]]
"""Token ids of a context, and of what follows it."""


def perplexity(
    rows: list[Row], *, model: PolicyRef, part: Literal["written", "prompt"] = "written", side: Side = "chosen"
) -> list[float | None]:
    """Perplexity of a model on the completion after its prompt: exp of the mean loss of the completion's tokens.

    `part: prompt` is the perplexity of the prompt's text alone. `side` is the completion of a preference pair. None for
    rows that the model's context does not hold.
    """
    judge = guest(model)
    if part == "prompt":
        pairs = [_encode_alone(judge, _join([m for m in row["prompt"] or [] if m["role"] != "system"])) for row in rows]
    else:
        pairs = [_encode_after_prompt(judge, row, side) for row in rows]
    return [None if loss is None else math.exp(min(loss, 700.0)) for loss in _mean_losses(judge, pairs)]


def noted_score(rows: list[Row], *, key: str = "score") -> list[float | None]:
    """Number that the metadata of a row have under a key, as a function noted it; None where there is none."""
    noted = [read_metadata(row).get(key) for row in rows]
    return [float(one) if isinstance(one, int | float) and math.isfinite(one) else None for one in noted]


def instruction_difficulty(rows: list[Row], *, model: PolicyRef, side: Side = "chosen") -> list[float | None]:
    """Instruction-following difficulty (Li et al. 2024): loss of an answer after its prompt / its loss alone.

    Near 0 the prompt says all, near 1 it helps little, above 1 prompt and answer do not belong together. Both losses
    are means over the same tokens: those of the answer's text, from the second on where the tokenizer has no token for
    the beginning. None for rows without a prompt or with an answer of one token, and where the context does not hold
    the row.
    """
    judge = guest(model)
    encoded = [_encode_both_ways(judge, row, side) for row in rows]
    given = _mean_losses(judge, [None if both is None else both[0] for both in encoded])
    alone = _mean_losses(judge, [None if both is None else both[1] for both in encoded])
    losses = zip(given, alone, strict=True)
    return [None if one is None or other is None or other == 0 else one / other for one, other in losses]


def reward(
    rows: list[Row],
    account: SpendingAccount,
    seed: int,
    *,
    of: RewardFunction,
    side: Literal["chosen", "rejected", "margin"] = "chosen",
) -> list[float | None]:
    """Reward of the completion: of a reward model (`models.learned`), a judge with a rubric (`judges.model`), a rule.

    `side` is the completion of a preference pair; `margin` is the reward of `chosen` minus that of `rejected`. None
    where the reward cannot score the completion.
    """
    if side != "margin":
        return _compute_rewards(of, rows, [_find_text(row, side) for row in rows], account, seed)
    if any("chosen" not in row for row in rows):
        raise StepError("score reward: `side: margin` compares the sides of preference pairs, and these rows have none")
    sides: tuple[Side, Side] = ("chosen", "rejected")
    scores = [_compute_rewards(of, rows, [_find_text(row, side) for row in rows], account, seed) for side in sides]
    return [None if one is None or other is None else one - other for one, other in zip(*scores, strict=True)]


def sampled_reward(
    rows: list[Row],
    account: SpendingAccount,
    seed: int,
    *,
    model: PolicyRef,
    of: RewardFunction,
    n: Annotated[int, Field(ge=2)] = 8,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
    equal: Literal["mean", "none"] = "mean",
) -> list[float | None]:
    """Mean reward of `n` completions that a model samples for the row: how often it solves the problem.

    With `equal: none` a row whose rewards are all equal has no score, since a group of completions would teach nothing
    there. None, too, where the model's context has no room for a completion or the reward cannot score one.
    """
    sampling = Sampling(temperature, max_completion_length)
    made = replies(
        guest(model), [row["prompt"] for row in rows], n=n, sampling=sampling, rng=np.random.default_rng(seed)
    )
    drawn = [(row, text) for row, texts in zip(rows, made, strict=True) if texts is not None for text in texts]
    earned = iter(_compute_rewards(of, [row for row, _ in drawn], [text for _, text in drawn], account, seed))
    scores: list[float | None] = []
    for texts in made:
        own = [next(earned) for _ in texts or ()]
        known = [score for score in own if score is not None]
        useless = len(known) < n or (equal == "none" and min(known) == max(known))
        scores.append(None if useless else sum(known) / n)
    return scores


def episode_return(rows: list[Row], *, gamma: Annotated[float, Field(ge=0, le=1)] = 1.0) -> list[float | None]:
    """Discounted sum of the `rewards` in the metadata of an episode, γ per turn; None for a row without rewards.

    `min_quantile: 0.75` keeps the best quarter, as filtered behaviour cloning does.
    """
    given = [read_metadata(row).get("rewards") for row in rows]
    listed = [one if isinstance(one, list) else [] if one is None else [one] for one in given]
    return [sum(gamma**k * float(reward) for k, reward in enumerate(own)) if own else None for own in listed]


def _compute_rewards(
    of: RewardFunction, rows: Sequence[Row], texts: Sequence[str | None], account: SpendingAccount, seed: int
) -> list[float | None]:
    """Return weight times reward of each text that is there."""
    places = [i for i, text in enumerate(texts) if text is not None]
    scores: list[float | None] = [None] * len(texts)
    if not places:
        return scores
    supplies = {
        "rows": [rows[i] for i in places],
        "completions": [texts[i] for i in places],
        "groups": list(range(len(places))),
        "sources": ["policy"] * len(places),
        "step": 0,
        "seed": seed,
        "states": {},
        "account": account,
    }
    weight = value_at(of.bound.weight, 0)
    for i, score in zip(places, scores_of(of.bound, 0, supplies, {}), strict=True):
        scores[i] = None if score is None else weight * score
    return scores


def _find_text(row: Row, side: Side) -> str | None:
    """Return the text of a completion; None for a side that a row with a label lacks."""
    return _join(messages) if (messages := _get_written(row, side)) else None


def _get_written(row: Row, side: Side) -> list[Row]:
    """Return the messages of the completion, or of one side of a pair. Raise StepError for rows of prompts."""
    if "completion" not in row and side not in row:
        raise StepError(
            "these rows are prompts without completions, or solutions in steps; this score is of one completion: use "
            "`part: prompt`"
        )
    return row["completion"] if "completion" in row else row[side]


def _join(messages: Sequence[Row]) -> str:
    return "\n".join(str(message["content"] or "") for message in messages)


def _encode_after_prompt(judge: Sampler, row: Row, side: Side) -> Pair | None:
    """Return the ids of a prompt and of its completion; None for a side that the row lacks."""
    written = _get_written(row, side)
    if not written:
        return None
    if written[0]["role"] == PLAIN:
        return _encode_alone(judge, _join(written))
    return encode_answer(judge.policy.tokenizer, row["prompt"], written, row)


def _encode_both_ways(judge: Sampler, row: Row, side: Side) -> tuple[Pair, Pair] | None:
    """Return the same ids of an answer's text after its prompt, and alone; None where there is no such text."""
    pair = _encode_after_prompt(judge, row, side)
    if pair is None or not row["prompt"]:
        return None
    text = _join(_get_written(row, side))
    ids, alone = encode_text(judge.policy.tokenizer, text), _encode_alone(judge, text)
    if alone is None or pair[1][: len(ids)] != ids:
        return None
    return (pair[0] + ids[: len(ids) - len(alone[1])], alone[1]), alone


def _encode_alone(judge: Sampler, text: str) -> Pair | None:
    """Return the ids of a text after the token for the beginning, or after its own first token; None without a rest."""
    ids = encode_text(judge.policy.tokenizer, text)
    begin = judge.policy.tokenizer.bos_token_id
    pair = ([begin], ids) if isinstance(begin, int) else (ids[:1], ids[1:])
    return pair if pair[1] else None


def _mean_losses(judge: Sampler, pairs: Sequence[Pair | None]) -> list[float | None]:
    """Return the mean loss of the second ids of each pair after the first; None where there is none."""
    computed = logprobs(judge, [pair or ([], []) for pair in pairs])
    return [None if not lps else -sum(lps) / len(lps) for lps in computed]
