"""Preference pairs as questions, to train a language model as a pairwise preference model."""

from pathlib import Path

from learning.data.questions import make_question
from learning.data.rows import Row, read_rows
from schemas.errors import StepError
from schemas.references import PreferencePairsRef

TEMPLATE = "Problem: {prompt}\nAnswer 1: {first}\nAnswer 2: {second}\nThe better answer is number"
"""The question of the reward `pairwise.judged`."""


def comparisons(
    *, data: PreferencePairsRef, template: str = TEMPLATE, first: str = "1", second: str = "2"
) -> list[Row]:
    """Turn every preference pair into two questions, one for each order of its completions, answered by the better one.

    A model trained on these can be the judge of the reward `pairwise.judged`, with the same template and words.
    """
    problems = []
    for row in read_rows(Path(str(data)), "preference_pairs"):
        if not row["chosen"] or not row["rejected"]:
            raise StepError(f"comparisons: row {row['id']} has one completion with a label; it needs pairs")
        chosen, rejected = (row[side][-1]["content"] for side in ("chosen", "rejected"))
        for answer, shown in ((first, (chosen, rejected)), (second, (rejected, chosen))):
            prompt = make_question(template, row, first=shown[0], second=shown[1])
            about = {key: row[key] for key in ("family", "metadata")}
            problems.append({"id": f"{row['id']}-{len(problems)}", "prompt": prompt, "answer": answer, **about})
    return problems
