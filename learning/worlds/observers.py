"""Problems that come with somebody's answer, right or wrong: what an observer is given."""

import hashlib
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.lookup import Inner
from learning.mistakes import mistaken
from learning.questions import question
from schemas.errors import StepError
from schemas.use import ProblemsUse, TeacherUse

Row = dict[str, Any]
TEMPLATE = "{prompt} {shown}; {prompt}"


def shown_to(row: Row, text: str, template: str) -> Row:
    """The problem as an observer gets it: the template with `{prompt}` and, as `{shown}`, what was answered."""
    if "{shown}" not in template:
        raise StepError("the template of an observer shows no {shown}")
    return row | {"prompt": question(template, row, shown=text)}


def second_opinions(
    *,
    of: ProblemsUse,
    seed: int = 0,
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5,
    by: TeacherUse | None = None,
    template: str = TEMPLATE,
) -> list[Row]:
    """The problems of another generator, each with an answer that is wrong at `error_rate`: an observer's exercises.

    With `by` it is what that teacher writes, a plan or a document, that is shown; errors are then the teacher's own.
    """
    guide: Inner | None = by
    rng = np.random.default_rng(seed)
    made = []
    for row in of():
        if guide is not None:
            text = guide.bound(row, rng)
        else:
            text = row["answer"] if rng.random() >= error_rate else mistaken(row["answer"], rng)
        name = hashlib.sha256(f"second_opinions\n{row['id']}\n{text}".encode()).hexdigest()[:16]
        made.append(shown_to(row, text, template) | {"id": name})
    return made
