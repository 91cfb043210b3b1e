"""Questions of three kinds that are answered best in three ways: from memory, step by step, or with a tool.

`17 river of bam?` asks for a fact of the world that all questions share, so that a model can know it by heart; 17 is
the number of who asks. `3+5+2+4=` is a sum; `find river of kol?` asks about one of many other worlds, whose documents
the metadata hold.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.atlas import find_document, list_texts, make_atlas
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row, read_metadata

Kind = Literal["fact", "sum", "lookup"]
WAYS = ("instant", "reasoning", "agentic")
"""Tags of the ways to answer, the cheapest first."""
BEST: dict[str, str] = dict(zip(("fact", "sum", "lookup"), WAYS, strict=True))
"""The cheapest way that answers questions of a kind."""
MARKER = "#"
WORLDS = 40
"""Worlds that are looked up; world 0 is the one to know by heart."""
SPACE = 50
"""Draws per requested question after which the space counts as exhausted."""


def mixed_queries(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    kinds: Annotated[list[Kind], Field(min_length=1)] = ["fact", "sum", "lookup"],  # noqa: B006 — never written to
    towns: Annotated[int, Field(ge=4, le=40)] = 4,
) -> list[Row]:
    """Generate `size` questions, cycling through `kinds`, split by their texts: who asks for a fact differs.

    A world has 4 documents for each of its `towns`. A question whose document a search does not find is left out.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        kind = kinds[len(rows) % len(kinds)]
        if kind == "sum":
            numbers = rng.integers(1, 6, size=4).tolist()
            row = make_row("sum", f"{'+'.join(map(str, numbers))}=", str(sum(numbers)), {"kind": kind})
            return row if is_in_split(row["id"], split, test_share) else None
        documents = make_atlas(towns, 0 if kind == "fact" else int(rng.integers(1, WORLDS + 1)))
        document = town, relation, value = documents[int(rng.integers(len(documents)))]
        if find_document(f"{town} {relation}", documents) != document:
            return None
        notes = {"kind": kind, "documents": list_texts(documents)}
        before = "find" if kind == "lookup" else str(int(rng.integers(10, 100)))
        row = make_row(kind, f"{before} {relation} of {town}?", value, notes)
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE * size, "mixed_queries", split, "lower `size` or raise `towns`")


def routed(row: Row, rng: np.random.Generator, *, slips: Rate = 0.0) -> str:
    """Write the next turn of an answer: `<instant>#zed`, `<reasoning>8,10#14`, `<agentic>search: kol river`.

    The way is the cheapest one that works, at the rate `slips` any of the three. One that does not work ends in a
    guess: of a sum without steps, of a document that was not read. Raise StepError for other problems.
    """
    kind, documents = read_metadata(row, "mixed_queries", lambda notes: (notes["kind"], notes.get("documents", [])))
    messages = row["prompt"]
    if messages[-1]["role"] == "user" and any(message["role"] == "assistant" for message in messages):
        return f"<agentic>{MARKER}{str(messages[-1]['content']).split()[-1]}"
    way = WAYS[int(rng.integers(len(WAYS)))] if rng.random() < slips else BEST[kind]
    if kind == "sum":
        return _write_sum(way, str(messages[0]["content"]).rstrip("="), rng)
    _, relation, _, town = str(messages[0]["content"]).rstrip("?").split(" ")
    if way == "agentic":
        return f"<agentic>search: {town} {relation}"
    value = row["answer"] if kind == "fact" else str(rng.choice(documents)).split()[-1]
    return f"<{way}>{f'{town} {relation} {value}' if way == 'reasoning' else ''}{MARKER}{value}"


def _write_sum(way: str, question: str, rng: np.random.Generator) -> str:
    if way == "agentic":
        return f"<agentic>calculator: {question}"
    totals = np.cumsum([int(number) for number in question.split("+")]).tolist()
    if way == "reasoning":
        return f"<reasoning>{','.join(map(str, totals[1:-1]))}{MARKER}{totals[-1]}"
    return f"<instant>{MARKER}{int(totals[-1] + rng.integers(-3, 4))}"
