"""Execution semantics as an additional task when training on code: CodeRL+ (2025)."""

import json
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.samples.sample import Ask, Trial
from learning.toy_tasks.coding import state_row
from learning.toy_tasks.execution import ProgramError

AtLeast1 = Annotated[int, Field(ge=1)]


def trace_tasks(
    trials: list[Trial],
    round: int,
    rng: np.random.Generator,
    *,
    size: AtLeast1 = 8,
    n: AtLeast1 = 4,
) -> tuple[list[Trial], list[Ask]]:
    """Sample predictions of the variables of `size` programs of this iteration, `n` of each (CodeRL+ 2025).

    Programs that failed their tests are among them, those that do not run cannot be. They run on the first test case
    of their problem. The source of these completions is `auxiliary`, their family `program_states`, each is a group.
    """
    if round:
        return trials, []
    made: dict[str, dict[str, Any]] = {}
    for trial in trials:
        tests = json.loads(trial.row["metadata"] or "{}").get("tests") if trial.source == "policy" else None
        if tests:
            try:
                row = state_row(trial.text.strip(), tests[0][0], trial.row["id"])
            except ProgramError:
                continue
            made.setdefault(row["id"], row)
    rows = list(made.values())
    chosen = sorted(rng.choice(len(rows), size=min(size, len(rows)), replace=False).tolist()) if rows else []
    return trials, [Ask(rows[i], n, "auxiliary") for i in chosen]
