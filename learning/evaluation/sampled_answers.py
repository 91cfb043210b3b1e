"""A model's completions of prompts rows and what rewards say of them, for data and for evaluation."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from learning.api.spending import SpendingAccount
from learning.data.chat import decode, encode_prompt
from learning.data.row_journal import RowJournal, make_row_key
from learning.data.rows import Row
from learning.generation.services.row_streams import stream_completions
from learning.lookup import Bound, Supplies
from learning.samples.engine_protocol import EngineProtocol, Generation, Request, Sampling, Turn
from learning.samples.sample import Sample, last_turn, transcript
from learning.samples.truncation import describe_truncated
from learning.sampling.scoring import PlacedReward, scores_of, sum_scores
from schemas.number_schedules import Number, value_at
from schemas.stages.evaluate import Evaluate


@dataclass(frozen=True)
class AnswerSample:
    """One completion; `finish` is `length` where the limit cut it."""

    text: str
    """Of an episode the last of the model's turns."""
    finish: Literal["stop", "length", "suspended"]
    turns: tuple[Turn, ...] = ()
    """Whole turns of an episode."""
    transcript: str = ""
    """All of an episode to read, with what was observed."""


def sample_rows(
    engine: EngineProtocol,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    n: int,
    seed: int,
    sampling: Sampling,
    on_progress: Callable[[int, int], None],
    journal: RowJournal | None = None,
) -> list[list[AnswerSample]]:
    """Return `n` completions of every row; those of a row depend on the seed and the row's id, not on its neighbours.

    `on_progress` receives the number of finished rows, and of tokens sampled since its last call. What `journal`
    knows (it is of one seed and one way to sample) is not sampled again, and what is sampled is written there at once.
    """
    names = [make_row_key(row) for row in rows]
    samples = {name: _read(journal[name]) for name in names if name in journal} if journal is not None else {}
    missing = {name: row for name, row in zip(names, rows, strict=True) if name not in samples}
    if samples:
        on_progress(len(rows) - len(missing), 0)
    total = len(samples) + len(missing)
    for done, tokens in _sampled(engine, tokenizer, missing, n=n, seed=seed, sampling=sampling):
        if journal is not None:
            journal.add({name: [_written(one) for one in group] for name, group in done.items()}, tokens)
        samples |= done
        on_progress(len(rows) - total + len(samples), sum(tokens.values()))
    return [samples[name] for name in names]


def _sampled(
    engine: EngineProtocol, tokenizer: Any, rows: dict[str, Row], *, n: int, seed: int, sampling: Sampling
) -> Iterator[tuple[dict[str, list[AnswerSample]], dict[str, int]]]:
    """Yield rows by name whose completions have all ended, and the tokens that were sampled for each."""
    names = list(rows)
    requests = (
        (i, Request(encode_prompt(tokenizer, row["prompt"], row), n, make_row_seed(seed, row), row=row))
        for i, row in enumerate(rows.values())
    )
    open_: dict[int, dict[int, Generation]] = {}
    for made in stream_completions(engine, requests, sampling):
        for ticket, one in made:
            open_.setdefault(ticket, {})[one.sample] = one
        complete = {ticket: open_.pop(ticket) for ticket in {t for t, _ in made} if len(open_[ticket]) == n}
        if complete:
            done = {names[t]: [_sample(tokenizer, of[k]) for k in sorted(of)] for t, of in sorted(complete.items())}
            yield done, {names[t]: sum(one.sampled for one in of.values()) for t, of in complete.items()}


def _sample(tokenizer: Any, one: Generation) -> AnswerSample:
    text = decode(tokenizer, one.token_ids[last_turn(0, one.turns) :])
    if not one.turns:
        return AnswerSample(text, one.finish)
    text_of_episode = transcript(partial(decode, tokenizer), one.token_ids, one.turns)
    return AnswerSample(text, one.finish, tuple(one.turns), text_of_episode)


def _written(one: AnswerSample) -> list[Any]:
    return [one.text, one.finish, *([[asdict(turn) for turn in one.turns], one.transcript] if one.turns else [])]


def _read(value: list[list[Any]]) -> list[AnswerSample]:
    return [
        AnswerSample(text, finish, tuple(Turn(**turn) for turn in more[0]), more[1])
        if more
        else AnswerSample(text, finish)
        for text, finish, *more in value
    ]


def make_row_seed(seed: int, row: Row) -> int:
    """Return random stream of a row, below 2^63."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{row['id']}".encode()).digest()[:8], "big") >> 1


def select_best(groups: Sequence[Sequence[AnswerSample]], scores: Sequence[float | None]) -> list[list[AnswerSample]]:
    """Return the sample of each group with the highest score, the first among equals; unscored ones come last."""
    left = iter(scores)
    of_groups = [[-math.inf if (s := next(left)) is None else s for _ in group] for group in groups]
    return [[group[of.index(max(of))]] for group, of in zip(groups, of_groups, strict=True)]


def compute_weighted_scores(
    rewards: Sequence[Bound | PlacedReward],
    weights: Sequence[Number],
    rows: list[Row],
    texts: list[str],
    account: SpendingAccount | None = None,
    samples: Sequence[AnswerSample] = (),
    shown: dict[str, str] | None = None,
    *,
    episodes: bool = False,
) -> list[float | None]:
    """Return the weighted sum of the rewards of each completion, None where it is unscorable.

    `account` is for rewards that ask remote models, `samples` for those that look at the turns of `episodes`, of which
    there are none where the first turn was cut; `shown` and what happens when a reward raises are as in `scores_of`.
    """
    shown = {} if shown is None else shown
    places = {row["id"]: i for i, row in enumerate({r["id"]: r for r in rows}.values())}
    context = {"rows": rows, "completions": texts, "groups": [places[row["id"]] for row in rows]}
    context |= {"sources": ["policy"] * len(rows), "step": 0, "seed": 0, "states": {}, "account": account}
    if episodes:
        context["samples"] = [
            Sample(row, group, "policy", [], [], None, one.finish, one.text, turns=list(one.turns))
            for row, group, one in zip(rows, context["groups"], samples, strict=True)
        ]
    return weigh_rewards(rewards, weights, context, shown)


def weigh_rewards(
    rewards: Sequence[Bound | PlacedReward], weights: Sequence[Number], supplies: Supplies, shown: dict[str, str]
) -> list[float | None]:
    """Return the weighted sum of the rewards of each completion in `supplies`, None where it is unscorable."""
    size = len(supplies["completions"])
    factors = [value_at(weight, 0) for weight in weights]
    may_lack = [factor == 0 or reward.optional for reward, factor in zip(rewards, factors, strict=True)]
    scores = [scores_of(reward, 0, supplies, shown) if size else [] for reward in rewards]
    of_each = zip(*scores, strict=True) if rewards else [()] * size
    return [sum_scores(of_one, factors, may_lack) for of_one in of_each]


def collect_texts(samples: list[list[AnswerSample]]) -> np.ndarray:
    """Return the texts of the samples (P, N)."""
    return np.array([[one.text for one in group] for group in samples], dtype=object)


def summarise_episodes(samples: list[list[AnswerSample]]) -> dict[str, float]:
    """Return the mean number of turns per episode, and of those that the environment could not execute."""
    turns = [one.turns for group in samples for one in group]
    failed = sum(not turn.ok for episode in turns for turn in episode)
    return {"turns": sum(map(len, turns)) / len(turns), "failed_turns": failed / len(turns)}


def measure_truncated(samples: dict[str, list[list[AnswerSample]]]) -> dict[str, float]:
    """Return the share of each model's completions that hit the length limit, as `truncated.<model>`."""
    ends = {model: [one.finish == "length" for group in groups for one in group] for model, groups in samples.items()}
    return {f"truncated.{model}": sum(cut) / len(cut) for model, cut in ends.items()}


def describe_completions(
    stage: Evaluate,
    samples: dict[str, list[list[AnswerSample]]],
    scores: dict[str, np.ndarray],
    failures: Mapping[str, str],
) -> list[str]:
    """Return a sentence for each model about completions that were truncated or have no score."""
    notices: list[str] = []
    for model, groups in samples.items():
        cut = sum(one.finish == "length" for group in groups for one in group)
        size, missing = sum(map(len, groups)), int(np.isnan(scores[model]).sum())
        env = stage.envs.get(model, stage.env)
        cuts = describe_truncated(cut, size, stage.max_completion_length, env and env.max_turns)
        notices += [f"{model}: {text}" for text in cuts]
        if missing:
            why = "; ".join(failures.values()) or "a reward returned None for them"
            notices.append(f"{model}: {missing} of {size} completions have no score and are not counted: {why}")
    return notices
