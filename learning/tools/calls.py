"""Tools that a model may call: each takes the text of a query and returns the text of an answer.

A tool may have the parameters `row` (the problem) and `rng`; its keyword-only parameters are set in the recipe. It
raises ValueError for a query that it cannot answer, and the model is shown the message. The same query on the same
problem gives the same answer. (VerlTool, Jiang et al. 2025: tools as plugins behind one interface.)
"""

from functools import lru_cache
from typing import Annotated

from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.sandbox.run import run
from learning.tools.arithmetic import calculate
from learning.tools.retrieval import Shelf
from learning.tools.tables import run_query

AtLeast1 = Annotated[int, Field(ge=1)]


def calculator(query: str) -> str:
    """Evaluate an expression of numbers, + - * / // % ** and brackets: `(417 + 3) * 23` gives `9660`."""
    return calculate(query)


def python(
    query: str, *, seconds: Annotated[float, Field(gt=0)] = 5.0, memory_mb: Annotated[int, Field(ge=32)] = 256
) -> str:
    """Run a Python program in the sandbox and return its output; the reason if it fails or takes too long."""
    ran = run(query, seconds=seconds, memory_mb=memory_mb)
    if ran.code or ran.timed_out:
        raise ValueError(ran.reason or (ran.stderr.strip().splitlines() or [f"it ended with {ran.code}"])[-1])
    return ran.stdout.strip()


def search(query: str, row: Row, *, documents: list[str] = [], top: AtLeast1 = 1) -> str:  # noqa: B006
    """Return the `top` documents most similar to the query, one per line, by runs of three characters in any case.

    Without `documents` they are the list `documents` in the problem's metadata.
    """
    if not query.strip():
        raise ValueError("the query is empty")
    texts = documents or read_metadata(row).get("documents")
    if not texts:
        raise ValueError("there are no documents to search")
    return "\n".join(
        document["text"] for document in _shelf(tuple(texts)).nearest(query.strip().casefold(), top, same=True)
    )


def sql(
    query: str,
    row: Row,
    *,
    tables: dict[str, list[Row]] = {},  # noqa: B006
    longest: AtLeast1 = 20,
    work: AtLeast1 = 100,
) -> str:
    """Run a read-only SQL query on tables and return at most `longest` rows, one per line.

    Without `tables` they are the map `tables` in the problem's metadata, from the name of a table to its rows. `work`
    limits the query, in thousands of instructions of sqlite's virtual machine.
    """
    return run_query(query, tables or read_metadata(row).get("tables") or {}, rows=longest, work=work)


@lru_cache(maxsize=256)
def _shelf(texts: tuple[str, ...]) -> Shelf:
    return Shelf([{"text": text, "prompt": [{"content": text.casefold()}]} for text in texts], 3)
