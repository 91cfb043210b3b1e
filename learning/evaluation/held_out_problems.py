"""Refusals of test problems where something is chosen by an evaluation."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from learning.data.rows import Row
from learning.evaluation.scored_tasks import ScoredTasks
from schemas.errors import StepError

WORDS = re.compile(r"\w+|[^\w\s]")
ADVICE = "a choice by them would make the evaluation too good; give the search problems of its own"


def refuse_test_tasks(scored: Iterable[ScoredTasks]) -> None:
    """Raise StepError for a library's task that evaluates a test split."""
    for tasks in scored:
        if tasks.test_tasks:
            raise StepError(
                f"lm_eval: task {tasks.test_tasks[0]} evaluates its test split (`test_split`), by which nothing may be "
                "chosen; name a task file with a `validation_split` and without `test_split`"
            )


def refuse_held_out_problems(rows: Sequence[Row], held_out: Sequence[Row]) -> None:
    """Raise StepError if a row asks the same as a problem of an evaluation, by the words of its last turn."""
    asked = {words: problem["id"] for problem in held_out if (words := _list_words(problem))}
    matches = [(row["id"], asked[words]) for row in rows if (words := _list_words(row)) in asked]
    if matches:
        row, problem = matches[0]
        raise StepError(
            f"{len(matches)} of {len(rows)} problems are problems of an evaluation of this recipe, too (first: {row} "
            f"is {problem} there): {ADVICE}"
        )


def _list_words(row: Row) -> str:
    """Return the words of the whole prompt, spaced equally."""
    text = "\n".join(str(turn["content"] or "") for turn in row["prompt"])
    return " ".join(WORDS.findall(unicodedata.normalize("NFC", text.lower())))
