"""Problems that come with somebody's answer, right or wrong: what an observer is given."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.question_templates import question
from learning.data.rows import read_rows
from learning.data.wrong_answers import mistaken
from learning.lookup import Inner
from learning.tools.retrieval import Shelf
from schemas.errors import StepError
from schemas.references import ChatRef
from schemas.use import ProblemsUse, TeacherUse

Row = dict[str, Any]
TEMPLATE = "{prompt} {shown}; {prompt}"


def shown_to(row: Row, text: str, template: str) -> Row:
    """The problem as an observer gets it: the template with `{prompt}` and, as `{shown}`, what was answered."""
    if "{shown}" not in template:
        raise StepError("the template of an observer shows no {shown}")
    return row | {"prompt": question(template, row, shown=text)}


def looked_up(texts: list[str], data: Path | str | None) -> list[str]:
    """For each query the document of a chat artifact that looks most like it, and what it says; without one the query.

    Similarity is that of `solver: retrieve`, by runs of three characters.
    """
    if data is None:
        return texts
    documents = [_shelf(str(data)).nearest(text, 1, same=True)[0] for text in texts]
    return [f"{d['prompt'][-1]['content']} {d['completion'][-1]['content']}" for d in documents]


@lru_cache(maxsize=4)
def _shelf(folder: str) -> Shelf:
    return Shelf(read_rows(Path(folder), "chat"), 3)


def second_opinions(
    *,
    of: ProblemsUse,
    seed: int = 0,
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5,
    by: TeacherUse | None = None,
    data: ChatRef | None = None,
    template: str = TEMPLATE,
) -> list[Row]:
    """The problems of another generator, each with an answer that is wrong at `error_rate`: an observer's exercises.

    With `by` it is what that teacher writes that is shown, a plan, or a query where `data` are documents, of which the
    nearest is shown in its place; errors are then the teacher's own.
    """
    guide: Inner | None = by
    rng = np.random.default_rng(seed)
    made = []
    for row in of():
        if guide is not None:
            (text,) = looked_up([guide.bound(row, rng)], data)
        else:
            text = row["answer"] if rng.random() >= error_rate else mistaken(row["answer"], rng)
        name = hashlib.sha256(f"second_opinions\n{row['id']}\n{text}".encode()).hexdigest()[:16]
        made.append(shown_to(row, text, template) | {"id": name})
    return made
