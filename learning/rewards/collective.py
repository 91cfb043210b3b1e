"""Rewards of two agents who answer one after the other: each earns what both earn together (CORY, Ma et al. 2024).

Where one of the two answers cannot be scored, neither can their sum.
"""

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.lookup import Inner, RewardFunction
from learning.problems.second_opinions import TEMPLATE, looked_up, shown_to
from learning.rewards.composite import asked
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import ChatRef, PolicyRef

Row = dict[str, Any]


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
    """The task reward `of` of the completion, and of the answer of a partner that is shown it.

    The partner's prompts come from `prompt_sampler: observed`.
    """
    task: Inner = of
    seen = [shown_to(row, text, template) for row, text in zip(rows, completions, strict=True)]
    sampling = Sampling(temperature, max_completion_length)
    said = replies(guest(partner), [row["prompt"] for row in seen], n=1, sampling=sampling, rng=rng)
    theirs = _scores(task, rows, [None if texts is None else texts[0] for texts in said])
    return _sums(asked(task, range(len(rows))), theirs)


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
    """The mean task reward `of` of `calls` answers of a partner who is shown the completion: a plan for others.

    With `data` it is a query instead, and the partner is shown the document that looks most like it. Nothing is asked
    of the completion itself. Where the partner has no room, or no answer can be scored, it has no reward.
    """
    task: Inner = of
    seen = [shown_to(row, text, template) for row, text in zip(rows, looked_up(completions, data), strict=True)]
    sampling = Sampling(temperature, max_completion_length)
    said = replies(guest(partner), [row["prompt"] for row in seen], n=calls, sampling=sampling, rng=rng)
    found: list[list[float]] = [[] for _ in rows]
    for call in range(calls):
        for i, score in enumerate(_scores(task, rows, [None if texts is None else texts[call] for texts in said])):
            found[i] += [] if score is None else [score]
    return [sum(scores) / len(scores) if scores else None for scores in found]


def observer(rows: list[Row], completions: list[str], *, of: RewardFunction) -> list[float | None]:
    """The task reward `of` of the completion, and of the answer that was shown; raises StepError where none was."""
    task: Inner = of
    if any("shown" not in row for row in rows):
        raise StepError(
            "reward collective.observer: nothing was shown; the stage needs `prompt_sampler: {use: observed, ...}`"
        )
    return _sums(asked(task, range(len(rows))), _scores(task, rows, [row["shown"] for row in rows]))


def _scores(task: Inner, rows: list[Row], texts: list[str | None]) -> list[float | None]:
    """Task rewards of texts that are nobody's samples here; None where there is no text."""
    there = [i for i, text in enumerate(texts) if text is not None]
    have = {k: task.supplies[k] for k in task.supplies if k not in ("samples", "sources", "groups")}
    other = Inner(task.bound, task.step, have | {"rows": rows, "completions": texts})
    found: list[float | None] = [None] * len(texts)
    for i, score in zip(there, asked(other, there), strict=True):
        found[i] = score
    return found


def _sums(mine: list[float | None], theirs: list[float | None]) -> list[float | None]:
    return [None if a is None or b is None else a + b for a, b in zip(mine, theirs, strict=True)]
