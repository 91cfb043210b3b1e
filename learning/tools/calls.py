"""Tools that a model may call: each takes the text of a query and returns the text of an answer.

A tool may have the parameters `row` (the problem) and `rng`; its keyword-only parameters are set in the recipe. It
raises ValueError for a query that it cannot answer, and the model is shown the message. The same query on the same
problem gives the same answer. (VerlTool, Jiang et al. 2025: tools as plugins behind one interface.)
"""

from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.sandbox.run import run
from learning.tools.arithmetic import calculate
from learning.tools.retrieval import Index, Shelf
from learning.tools.tables import run_query

AtLeast1 = Annotated[int, Field(ge=1)]
Ranking = Literal["trigrams", "bm25"]
LONGEST_ECHO = 40
"""Most characters of a query that an error repeats."""


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


def search(
    query: str,
    row: Row,
    *,
    documents: list[str] = [],  # noqa: B006
    field: str = "documents",
    top: AtLeast1 = 1,
    ranking: Ranking = "trigrams",
) -> str:
    """Return the `top` documents that suit the query best, one per line, whatever their case.

    Without `documents` they are the list `field` in the problem's metadata. `trigrams` compares runs of three
    characters, so that words need not be spelled right; `bm25` counts whole words, rare ones more (Robertson & Zaragoza
    2009), and returns only documents that have one.
    """
    if not query.strip():
        raise ValueError("the query is empty")
    texts = documents or read_metadata(row).get(field)
    if not texts:
        raise ValueError("there are no documents to search")
    if ranking == "bm25":
        best = _index(tuple(texts)).rank(query, top)
        if not best:
            raise ValueError("no document has one of these words")
        return "\n".join(texts[place] for place in best)
    return "\n".join(
        document["text"] for document in _shelf(tuple(texts)).nearest(query.strip().casefold(), top, same=True)
    )


def recorded(query: str, row: Row, *, of: str, otherwise: str | None = None) -> str:
    """Return the reply that the problem has for this query: a tool that is simulated by what it once said.

    The metadata have a map `replies` from the name `of` to a map from queries to replies. A query without a reply gets
    the text `otherwise`; null: it is an error, which the model may correct.
    """
    replies = (read_metadata(row).get("replies") or {}).get(of) or {}
    reply = replies.get(query.strip(), otherwise)
    if reply is None:
        raise ValueError(f"no reply to {query.strip()[:LONGEST_ECHO]!r}")
    return str(reply)


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


@lru_cache(maxsize=256)
def _index(texts: tuple[str, ...]) -> Index:
    return Index(texts)
