"""Rewards by rubrics: weighted criteria of their own for every problem, which its metadata list."""

from typing import Annotated

from pydantic import Field, ValidationError

from learning.data.rows import Row, read_metadata
from learning.lookup import Inner, RewardFunction
from learning.rewards.answers import extract_final_answer
from schemas.base import Schema
from schemas.errors import StepError


class Criterion(Schema):
    """A criterion as a row's metadata has it."""

    criterion: str
    weight: float = Field(default=1.0, allow_inf_nan=False)
    evidence: list[Annotated[str, Field(min_length=1)]] = []


def weighted(
    rows: list[Row],
    completions: list[str],
    *,
    judge: RewardFunction | None = None,
    at_least: float = 0.5,
    marker: str | None = None,
) -> list[float | None]:
    """Sum of the weights of the criteria that a completion meets, over the sum of the weights above 0; at least 0.

    The metadata of a problem have its `rubric`: `[{"criterion": "names the illness", "weight": 5, "evidence":
    ["flu"]}]`. Weights below 0 are for mistakes. A criterion is met by a completion that contains one of its `evidence`
    texts, whatever their case, and, with a `judge`, if that reward scores the completion `at_least` with the criterion
    as its prompt. With a `marker` only the text after its last one counts, such as the report at the end of a dialogue
    (without one the score is 0). None if the judge cannot score a criterion. Raise StepError for a problem without a
    rubric.
    """
    texts = [extract_final_answer(completion, marker) for completion in completions]
    return [0.0 if text is None else _score(row, text, judge, at_least) for row, text in zip(rows, texts, strict=True)]


def _score(row: Row, text: str, judge: Inner | None, at_least: float) -> float | None:
    rubric = read_rubric(row, judged=judge is not None)
    met = 0.0
    for criterion in rubric:
        if criterion.evidence and not any(each.casefold() in text.casefold() for each in criterion.evidence):
            continue
        if judge is not None:
            asked = row | {"prompt": [{"role": "user", "content": criterion.criterion}]}
            (score,) = judge(rows=[asked], completions=[text])
            if score is None:
                return None
            if score < at_least:
                continue
        met += criterion.weight
    return max(0.0, met / sum(criterion.weight for criterion in rubric if criterion.weight > 0))


def read_rubric(row: Row, *, judged: bool) -> list[Criterion]:
    """Return the rubric of a row. Raise StepError if it has none that can be used."""
    written = read_metadata(row).get("rubric")
    try:
        rubric = [Criterion.model_validate(entry) for entry in (written if isinstance(written, list) else [])]
    except ValidationError as error:
        raise StepError(f"rewards rubrics.weighted: row {row.get('id')}: its `rubric`: {error}") from error
    usable = all(judged or criterion.evidence for criterion in rubric)
    if not usable or not any(criterion.weight > 0 for criterion in rubric):
        raise StepError(
            f"rewards rubrics.weighted: row {row.get('id')}: its metadata need a `rubric`, a list such as "
            '[{"criterion": "names the illness", "weight": 5, "evidence": ["flu"]}] with a weight above 0; '
            "`evidence` may be empty with a `judge`"
        )
    return rubric
