"""Tools that a model may call: each takes the text of a query and gives the text of an answer.

A tool asks by name for the problem's `row` and for an `rng` if it needs them; what is after its star is set in
the recipe. What it cannot carry out it says with a ValueError, whose words the model is shown. The same query on the
same problem gives the same answer. (VerlTool, Jiang et al. 2025: tools as plugins behind one interface.)
"""

import json
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from learning.sandbox.run import run
from learning.tools.arithmetic import calculate
from learning.tools.retrieval import Shelf
from learning.tools.tables import run_query

AtLeast1 = Annotated[int, Field(ge=1)]


def calculator(query: str) -> str:
    """The value of an expression of numbers, + - * / // % ** and brackets: `(417 + 3) * 23` gives `9660`."""
    return calculate(query)


def python(
    query: str, *, seconds: Annotated[float, Field(gt=0)] = 5.0, memory_mb: Annotated[int, Field(ge=32)] = 256
) -> str:
    """What a program in Python prints, run in the sandbox; one that fails, or takes too long, is told how."""
    ran = run(query, seconds=seconds, memory_mb=memory_mb)
    if ran.code or ran.timed_out:
        raise ValueError(ran.told or (ran.stderr.strip().splitlines() or [f"it ended with {ran.code}"])[-1])
    return ran.stdout.strip()


def search(query: str, row: dict[str, Any], *, documents: list[str] = [], top: AtLeast1 = 1) -> str:  # noqa: B006
    """The `top` documents that look most like the query, one per line, by runs of three characters in any case.

    Without `documents` they are those of the problem: a list of that name in its metadata.
    """
    if not query.strip():
        raise ValueError("what is searched for is missing")
    texts = documents or _noted(row, "documents")
    if not texts:
        raise ValueError("there is nothing to search in")
    return "\n".join(found["text"] for found in _shelf(tuple(texts)).nearest(query.strip().casefold(), top, same=True))


def sql(
    query: str,
    row: dict[str, Any],
    *,
    tables: dict[str, list[dict[str, Any]]] = {},  # noqa: B006
    longest: AtLeast1 = 20,
    work: AtLeast1 = 100,
) -> str:
    """What a query in SQL finds in tables that cannot be written to: at most `longest` rows, a line each.

    Without `tables` they are those of the problem: a map of that name in its metadata, from the name of a table to its
    rows. `work` bounds the query, in thousands of instructions of sqlite's machine.
    """
    return run_query(query, tables or _noted(row, "tables") or {}, rows=longest, work=work)


def _noted(row: dict[str, Any], name: str) -> Any:
    """What the problem's metadata holds under a name; None where there is nothing."""
    return json.loads(row.get("metadata") or "{}").get(name)


@lru_cache(maxsize=256)
def _shelf(texts: tuple[str, ...]) -> Shelf:
    return Shelf([{"text": text, "prompt": [{"content": text.casefold()}]} for text in texts], 3)
