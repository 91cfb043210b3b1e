"""A selector's lessons: what a person said is better than what the model said in the same place."""

from typing import Any

from learning.data.rows import read_rows, write_rows
from schemas.errors import StepError


def human_over_sampled(context: Any) -> dict[str, float]:
    """Pairs of a demonstration (chosen) and every other text that a model said to the same prompt (rejected).

    Inputs `demonstrations` and `samples` (chat rows), output `pairs`. Raises StepError when no prompt has both.
    """
    human = {row["id"]: row for row in read_rows(context.input("demonstrations"), "chat")}
    samples = [row for row in read_rows(context.input("samples"), "chat") if row["id"] in human]
    pairs = [
        human[row["id"]] | {"chosen": human[row["id"]]["completion"], "rejected": row["completion"], "margin": 1.0}
        for row in samples
        if row["completion"] != human[row["id"]]["completion"]
    ]
    if not pairs:
        raise StepError("human_over_sampled: no prompt has a demonstration and another text of the model")
    write_rows(context.output("pairs"), "preference_pairs", pairs)
    return {"pairs": len(pairs), "same": len(samples) - len(pairs)}
