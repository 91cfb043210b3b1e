"""Problems that ask whether a model can solve other problems by itself, labelled by how often it does."""

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row, read_metadata, read_rows
from learning.generation.services.frozen_replies import sample_replies
from learning.lookup import RewardFunction
from learning.samples.engine_protocol import Sampling
from schemas.errors import StepError
from schemas.references import PolicyRef, PromptsRef


def own_knowledge(
    *,
    data: PromptsRef,
    model: PolicyRef,
    of: RewardFunction,
    alone: str = "{prompt}",
    asked: str = "{prompt}",
    n: Annotated[int, Field(ge=1)] = 8,
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.5,
    yes: str = "yes",
    no: str = "no",
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
    temperature: Annotated[float, Field(ge=0)] = 1.0,
    seed: int = 0,
) -> list[Row]:
    """Ask of every problem of `data` whether the model knows the answer: `yes` where it solves it often enough itself.

    The model answers each problem `n` times, without an environment, in the form `alone`; its solve rate is the share
    of answers with at least 1 by the reward `of`. The answer of the row is `yes` if the rate is at least `threshold`,
    else `no`, its prompt has the form `asked`, and its metadata have the `solve_rate` (AdaSearch, Lin et al. 2025).
    Raise StepError if a problem does not fit into the model's context, or cannot be scored.
    """
    rows, sampling = read_rows(Path(str(data)), "prompts"), Sampling(temperature, max_completion_length)
    made = sample_replies(str(model), [make_question(alone, row) for row in rows], n=n, sampling=sampling, seed=seed)
    return [
        row
        | {
            "id": f"{row['id']}:{asked}",
            "prompt": make_question(asked, row),
            "answer": yes if rate >= threshold else no,
            "metadata": json.dumps(read_metadata(row) | {"solve_rate": rate}),
        }
        for row, texts in zip(rows, made, strict=True)
        for rate in (_measure(row, texts, of),)
    ]


def _measure(row: Row, texts: list[str] | None, of: RewardFunction) -> float:
    """Return the share of texts that solve a problem."""
    if texts is None:
        raise StepError(f"problems own_knowledge: row {row['id']} exceeds the model's context; leave it out")
    scores: list[float | None] = of(rows=[row] * len(texts), completions=texts)
    right = [score >= 1 for score in scores if score is not None]
    if len(right) < len(texts):
        raise StepError(f"problems own_knowledge: row {row['id']} has answers without a score; leave it out")
    return sum(right) / len(right)
