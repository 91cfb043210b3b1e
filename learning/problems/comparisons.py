"""Preference pairs as questions, which a language model learns to answer: a pairwise preference model."""

from typing import Any

from learning.data.question_templates import question
from learning.data.rows import read_rows
from schemas.references import PreferencePairsRef

TEMPLATE = "Problem: {prompt}\nAnswer 1: {first}\nAnswer 2: {second}\nThe better answer is number"
"""The question of the reward `pairwise.judged`."""


def comparisons(
    *, data: PreferencePairsRef, template: str = TEMPLATE, first: str = "1", second: str = "2"
) -> list[dict[str, Any]]:
    """Every pair as two problems, one for each order in which its completions are shown; the answer names the chosen.

    What is trained on these can judge in the reward `pairwise.judged`; give both the same template and words.
    """
    made = []
    for row in read_rows(data, "preference_pairs"):
        chosen, rejected = (row[side][-1]["content"] for side in ("chosen", "rejected"))
        for answer, shown in ((first, (chosen, rejected)), (second, (rejected, chosen))):
            prompt = question(template, row, first=shown[0], second=shown[1])
            about = {key: row[key] for key in ("family", "metadata")}
            made.append({"id": f"{row['id']}-{len(made)}", "prompt": prompt, "answer": answer, **about})
    return made
