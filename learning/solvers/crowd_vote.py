"""How good several models are together: the answer they elect, each heard by its self-consistency."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import read_rows
from learning.rewards.answers import normalise_answer
from learning.rewards.consensus import Where, count_weighted_votes, elect, parse_answer
from learning.samples.engine_protocol import Sampling
from learning.sampling.verdicts import guest, replies
from schemas.errors import StepError
from schemas.references import PolicyRef, PromptsRef


def group_vote(
    context: Any,
    *,
    models: Annotated[list[PolicyRef], Field(min_length=1)],
    prompts: PromptsRef,
    num_generations: Annotated[int, Field(ge=1)] = 4,
    temperature: Annotated[float, Field(gt=0)] = 1.0,
    max_completion_length: Annotated[int, Field(ge=1)] = 64,
    marker: str | None = None,
    where: Where = "whole",
) -> dict[str, float]:
    """Accuracy of the models' joint vote (RLCCF 2025), and of each model's own majority, on problems with answers.

    Writes `votes.json` to the output `result`: the answer elected for every problem. Raises StepError where no problem
    has an answer or a model has no room for one.
    """
    rows = [row for row in read_rows(Path(prompts), "prompts") if row["answer"] is not None]
    if not rows:
        raise StepError("group_vote: no problem has an answer to be compared with")
    sampling = Sampling(temperature, max_completion_length)
    answers = []
    for number, folder in enumerate(models):
        rng = np.random.default_rng([context.seed, number])
        replied = replies(guest(folder), [r["prompt"] for r in rows], n=num_generations, sampling=sampling, rng=rng)
        if any(texts is None for texts in replied):
            raise StepError("group_vote: a prompt leaves a model no room; lower max_completion_length")
        answers.append([[parse_answer(text, marker, False, where) for text in texts or []] for texts in replied])
        context.progress(number + 1, len(models))
    true_answers = [
        parse_answer(row["answer"], None, False, "number")
        if where == "number"
        else normalise_answer(row["answer"], False)
        for row in rows
    ]
    together = [elect(count_weighted_votes(of_models)) for of_models in zip(*answers, strict=True)]
    votes_by_id = {row["id"]: None if vote is None else str(vote) for row, vote in zip(rows, together, strict=True)}
    (context.output("result") / "votes.json").write_text(json.dumps(votes_by_id, indent=1, sort_keys=True) + "\n")

    def right(votes: list) -> float:
        return sum(a == b for a, b in zip(votes, true_answers, strict=True)) / len(rows)

    alone = {f"majority_{i}": right([elect(count_weighted_votes([a])) for a in mine]) for i, mine in enumerate(answers)}
    return {"vote": right(together), **alone}
