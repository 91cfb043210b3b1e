"""Execution semantics as an additional task when training on code: CodeRL+ (Jiang et al. 2025)."""

import hashlib
import json
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.questions import make_question
from learning.data.rows import Row
from learning.rewards.programs import parse_assertion, read_tests
from learning.samples.sample import Sample, SampleRequest
from learning.sandbox.programs import extract_program, trace_variables
from schemas.errors import StepError

AtLeast1 = Annotated[int, Field(ge=1)]
TEMPLATE = (
    "{program}\n\nIt runs {call}. What are the last values of the variables? "
    "Write a line `name = value` for each variable."
)
LONGEST = 200
"""Limit of characters of a value that a model is asked for."""


def program_traces(
    samples: list[Sample],
    round: int,
    rng: np.random.Generator,
    *,
    size: AtLeast1 = 8,
    n: AtLeast1 = 4,
    template: str = TEMPLATE,
    seconds: Annotated[float, Field(gt=0)] = 5.0,
    memory_mb: Annotated[int, Field(ge=32)] = 256,
) -> tuple[list[Sample], list[SampleRequest]]:
    """Sample predictions of the variables of `size` programs of this iteration, `n` of each (CodeRL+ 2025).

    Each program of the policy runs in the sandbox on the first assertion of its row's `tests`, also one that fails its
    tests; one that raises an error is left out. The variables are those of the called function. The completions have
    source `auxiliary` and family `program_states`; those of one program form a group. Score them with
    `programs.states`.
    """
    if "{program}" not in template or "{call}" not in template:
        raise StepError("resample program_traces: `template` must show {program} and {call}")
    if round:
        return samples, []
    own = [sample for sample in samples if sample.source == "policy"]
    made: dict[str, Row] = {}
    for i in rng.permutation(len(own)).tolist():
        if len(made) == size:
            break
        row = _make_trace_row(own[i], template, seconds, memory_mb)
        if row is not None:
            made.setdefault(row["id"], row)
    return samples, [SampleRequest(row, n, "auxiliary") for _, row in sorted(made.items())]


def _make_trace_row(sample: Sample, template: str, seconds: float, memory_mb: int) -> Row | None:
    """Return the question for the variables of a sample's program; None if it has no variables to ask for.

    Raise StepError for a row without an assertion.
    """
    calls = [test for test in read_tests(sample.row) or [] if isinstance(test, str)]
    if not calls:
        raise StepError(
            f"resample program_traces: row {sample.row['id']} has no assertion in `tests`, so no call to trace; "
            "add a list of texts as `assert f(1) == 2`"
        )
    program = extract_program(sample.text)
    call, _ = parse_assertion(calls[0])
    values = trace_variables(program, call, seconds=seconds, memory_mb=memory_mb)
    states = {name: value for name, value in (values or {}).items() if len(value) <= LONGEST}
    if not states:
        return None
    digest = hashlib.sha256(f"{program}\n{call}".encode(errors="replace")).hexdigest()[:16]
    about = {"states": states, "program": program, "problem": sample.row["id"]}
    return {
        "id": f"states-{digest}",
        "prompt": make_question(template, sample.row, program=program, call=call),
        "answer": "\n".join(f"{name} = {value}" for name, value in states.items()),
        "family": "program_states",
        "metadata": json.dumps(about, sort_keys=True),
    }
