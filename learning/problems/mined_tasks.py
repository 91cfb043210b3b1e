"""Tasks mined from commits: which install recipe works for each, and which of its tests count.

(SWE-rebench, Badertdinov et al. 2025, arXiv:2505.20411, section 2: installation instructions by a language model,
execution-based verification.)
"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from learning.data.rows import Row, read_metadata, read_rows, write_rows
from learning.environments.repo import read_task
from learning.sandbox.repositories import run_tests
from schemas.errors import StepError


def set_up_tasks(
    context: Any,
    *,
    fallbacks: list[str] = ["path ."],  # noqa: B006 (never changed)
    seconds: Annotated[float, Field(gt=0)] = 5.0,
    memory_mb: Annotated[int, Field(ge=64)] = 256,
) -> dict[str, float]:
    """For a `python` stage: `inputs` tasks (prompts), recipes and perhaps labels (chat), `produces` tasks (prompts).

    The completions of `recipes` with the id of a task are its candidates, tried in their order, and after them the
    `fallbacks`; a candidate that fails is followed by the next one. The first under which a test passes after the right
    change becomes the task's `install`, and the tests that pass then are those that are `judged`. A first completion of
    `labels` becomes its `quality`. Tasks for which no recipe works are left out. Raise StepError if no task is left.
    """
    tasks = read_rows(context.input("tasks"), "prompts")
    candidates, labels = read_texts(context, "recipes"), read_texts(context, "labels")
    made: list[Row] = []
    tried = 0
    for task in tasks:
        found, tries = find_install(task, [*candidates.get(task["id"], []), *fallbacks], seconds, memory_mb)
        tried += tries
        if found is not None:
            notes = {"quality": labels[task["id"]][0]} if task["id"] in labels else {}
            made.append(found | {"metadata": json.dumps(read_metadata(found) | notes)})
    if not made:
        raise StepError(f"set_up_tasks: none of {tried} install recipes of {len(tasks)} tasks works")
    write_rows(context.output("tasks"), "prompts", made)
    return {"tasks": len(tasks), "installed": len(made), "tried": tried}


def read_texts(context: Any, port: str) -> dict[str, list[str]]:
    """Return the completions of an input by the ids of their problems, in their order; none without the input."""
    texts: dict[str, list[str]] = {}
    for row in read_rows(context.input(port), "chat") if port in context.inputs else ():
        texts.setdefault(row["id"], []).append(row["completion"][0]["content"])
    return texts


def find_install(
    row: Row, candidates: Sequence[str], seconds: float = 5.0, memory_mb: int = 256
) -> tuple[Row | None, int]:
    """Return the task with the first install recipe that works, and how many were tried; None if none works."""
    task = read_task(row)
    tests, files = task.tests | task.hidden, task.files | task.gold
    for tries, install in enumerate(candidates, 1):
        how = {"packages": task.packages, "seconds": seconds, "memory_mb": memory_mb}
        checks = run_tests(files, tests, install=install, **how)
        if passing := [name for name, check in checks.items() if check.passed]:
            about = read_metadata(row) | {"install": install, "judged": passing}
            return row | {"metadata": json.dumps(about)}, tries
    return None, len(candidates)
