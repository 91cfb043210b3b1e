"""Problems shown together with another agent's answer, right or wrong."""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row, read_rows
from learning.data.text_edits import mistaken
from learning.lookup import Inner, ProblemsFunction, TeacherFunction
from learning.tools.retrieval import Shelf
from schemas.errors import StepError
from schemas.references import ChatRef

TEMPLATE = "{prompt} {shown}; {prompt}"


def show_answer(row: Row, text: str, template: str) -> Row:
    """Return the problem for an observer: the template with `{prompt}` and the other agent's answer as `{shown}`."""
    if "{shown}" not in template:
        raise StepError("second_opinions: the template shows no {shown}; add it")
    return row | {"prompt": make_question(template, row, shown=text)}


def look_up_documents(texts: list[str], data: Path | str | None) -> list[str]:
    """Return, for each query, the most similar document of a chat artifact; without an artifact the queries.

    Similarity is that of the solver `retrieve`, by runs of three characters.
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
    of: ProblemsFunction,
    seed: int = 0,
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.5,
    by: TeacherFunction | None = None,
    data: ChatRef | None = None,
    template: str = TEMPLATE,
) -> list[Row]:
    """Show each problem of another generator with an answer that is wrong at `error_rate`, to train an observer.

    With `by` a teacher writes the shown text, such as a plan, with errors of its own; with `data` that text is a query,
    and the most similar document of `data` is shown.
    """
    guide: Inner | None = by
    rng = np.random.default_rng(seed)
    made = []
    for row in of():
        if guide is not None:
            (text,) = look_up_documents([guide.bound(row, rng)], data)
        else:
            text = row["answer"] if rng.random() >= error_rate else mistaken(row["answer"], rng)
        name = hashlib.sha256(f"second_opinions\n{row['id']}\n{text}".encode()).hexdigest()[:16]
        made.append(show_answer(row, text, template) | {"id": name})
    return made
