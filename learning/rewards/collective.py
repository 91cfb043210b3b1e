"""Rewards of two agents that answer in turn: each gets the sum of both scores (CORY, Ma et al. 2024).

If one of the two answers cannot be scored, neither can their sum.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.lookup import Inner, RewardFunction
from learning.problems.second_opinions import TEMPLATE, look_up_documents, show_answer
from learning.rewards.composite import score_selected
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import ChatRef, PolicyRef


def pioneer(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    of: RewardFunction,
    partner: PolicyRef,
    template: str = TEMPLATE,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[float | None]:
    """Task reward `of` of the completion plus that of a partner's answer that sees it (CORY, Ma et al. 2024).

    The partner trains with `prompt_sampler: observed`.
    """
    task: Inner = of
    shown = [show_answer(row, text, template) for row, text in zip(rows, completions, strict=True)]
    sampling = Sampling(temperature, max_completion_length)
    answers = replies(guest(partner), [row["prompt"] for row in shown], n=1, sampling=sampling, rng=rng)
    partner_scores = _score_texts(task, rows, [None if texts is None else texts[0] for texts in answers])
    return _add_scores(score_selected(task, range(len(rows))), partner_scores)


def led(
    rows: list[Row],
    completions: list[str],
    rng: np.random.Generator,
    *,
    of: RewardFunction,
    partner: PolicyRef,
    calls: Annotated[int, Field(ge=1)] = 1,
    data: ChatRef | None = None,
    template: str = TEMPLATE,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
) -> list[float | None]:
    """Mean task reward `of` of `calls` answers of a partner that sees the completion, such as a plan.

    With `data` the completion is a query instead, and the partner sees the document most similar to it. The completion
    itself is not scored. None if the prompt exceeds the partner's context or no answer can be scored.
    """
    task: Inner = of
    shown = [
        show_answer(row, text, template) for row, text in zip(rows, look_up_documents(completions, data), strict=True)
    ]
    sampling = Sampling(temperature, max_completion_length)
    answers = replies(guest(partner), [row["prompt"] for row in shown], n=calls, sampling=sampling, rng=rng)
    scores_of: list[list[float]] = [[] for _ in rows]
    for call in range(calls):
        texts_of_call = [None if texts is None else texts[call] for texts in answers]
        for i, score in enumerate(_score_texts(task, rows, texts_of_call)):
            scores_of[i] += [] if score is None else [score]
    return [sum(scores) / len(scores) if scores else None for scores in scores_of]


def observer(rows: list[Row], completions: list[str], *, of: RewardFunction) -> list[float | None]:
    """Task reward `of` of the completion plus that of the answer that its prompt shows (CORY, Ma et al. 2024).

    Raise StepError if the prompt shows no answer.
    """
    task: Inner = of
    if any("shown" not in row for row in rows):
        raise StepError(
            "reward collective.observer: the prompts show no answer; set `prompt_sampler: {use: observed, ...}`"
        )
    return _add_scores(score_selected(task, range(len(rows))), _score_texts(task, rows, [row["shown"] for row in rows]))


def _score_texts(task: Inner, rows: list[Row], texts: list[str | None]) -> list[float | None]:
    """Return the task rewards of texts that are not samples of this stage; None without a text."""
    places = [i for i, text in enumerate(texts) if text is not None]
    values = {k: task.supplies[k] for k in task.supplies if k not in ("samples", "sources", "groups")}
    reward = Inner(task.bound, task.step, values | {"rows": rows, "completions": texts})
    scores: list[float | None] = [None] * len(texts)
    for i, score in zip(places, score_selected(reward, places), strict=True):
        scores[i] = score
    return scores


def _add_scores(scores: list[float | None], others: list[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a + b for a, b in zip(scores, others, strict=True)]
