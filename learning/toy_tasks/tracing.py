"""Execution semantics as an additional task when training on code: CodeRL+ (2025)."""

import json
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.samples.sample import Sample, SampleRequest
from learning.toy_tasks.coding import state_row
from learning.toy_tasks.execution import ProgramError

AtLeast1 = Annotated[int, Field(ge=1)]


def trace_tasks(
    samples: list[Sample],
    round: int,
    rng: np.random.Generator,
    *,
    size: AtLeast1 = 8,
    n: AtLeast1 = 4,
) -> tuple[list[Sample], list[SampleRequest]]:
    """Sample predictions of the variables of `size` programs of this iteration, `n` of each (CodeRL+ 2025).

    Programs that failed their tests are included, programs that raise an error are not. They run on the first test case
    of their problem. The completions have source `auxiliary` and family `program_states`; those of one program form a
    group.
    """
    if round:
        return samples, []
    made: dict[str, Row] = {}
    for sample in samples:
        tests = json.loads(sample.row["metadata"] or "{}").get("tests") if sample.source == "policy" else None
        if tests:
            try:
                row = state_row(sample.text.strip(), tests[0][0], sample.row["id"])
            except ProgramError:
                continue
            made.setdefault(row["id"], row)
    rows = list(made.values())
    chosen = sorted(rng.choice(len(rows), size=min(size, len(rows)), replace=False).tolist()) if rows else []
    return samples, [SampleRequest(rows[i], n, "auxiliary") for i in chosen]
