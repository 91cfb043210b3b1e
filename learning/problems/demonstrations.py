"""Preference pairs of human demonstrations and model samples, to train a selector."""

from typing import Any

from learning.data.rows import read_rows, write_rows
from schemas.errors import StepError


def human_over_sampled(context: Any) -> dict[str, float]:
    """Pair every demonstration (chosen) with each different sample of a model for the same prompt (rejected).

    Inputs `demonstrations` and `samples` (chat rows), output `pairs`. Raise StepError if no prompt has both.
    """
    human = {row["id"]: row for row in read_rows(context.input("demonstrations"), "chat")}
    samples = [row for row in read_rows(context.input("samples"), "chat") if row["id"] in human]
    pairs = [
        human[row["id"]] | {"chosen": human[row["id"]]["completion"], "rejected": row["completion"], "margin": 1.0}
        for row in samples
        if row["completion"] != human[row["id"]]["completion"]
    ]
    if not pairs:
        raise StepError(
            "human_over_sampled: no prompt has both a demonstration and a different sample; "
            "give inputs with the same prompts"
        )
    write_rows(context.output("pairs"), "preference_pairs", pairs)
    return {"pairs": len(pairs), "same": len(samples) - len(pairs)}
