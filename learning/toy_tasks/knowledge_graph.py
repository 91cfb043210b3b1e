"""An invented knowledge graph, a document about each of its entities, and questions that walk along its relations.

A document is `bam: bam twin tok ally zed lord lun clan kip port nor`: the entity, then its relations. A question like
`lord of twin of bam?` needs a document for every relation, from the inside out; `search: bam` finds the first one.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.errors import StepError

RELATIONS = ("twin", "ally", "lord", "clan", "port")
SPACE = 50
"""Draws per requested question after which the space counts as exhausted."""
UNKNOWN = "unknown"
Facts = dict[str, dict[str, str]]
"""The relations of every entity, each to one other entity."""


@lru_cache(maxsize=16)
def make_graph(entities: int, world: int) -> Facts:
    """Return entities with random names, each with another entity for every relation, no two of them the same."""
    rng = np.random.default_rng([world, entities, len(RELATIONS)])
    words = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in "bdfgklmnprstvz"]
    names = [words[int(i)] for i in rng.permutation(len(words))[:entities]]
    made = Facts()
    for name in names:
        others = [other for other in names if other != name]
        drawn = rng.choice(len(others), size=len(RELATIONS), replace=False)
        made[name] = {relation: others[int(i)] for relation, i in zip(RELATIONS, drawn, strict=True)}
    return made


@lru_cache(maxsize=16)
def write_documents(entities: int, world: int, lost: float) -> dict[str, str]:
    """Return the document of every entity; each of its facts is left out with probability `lost`."""
    rng, made = np.random.default_rng([world, entities, 7]), dict[str, str]()
    for name, facts in make_graph(entities, world).items():
        kept = [f"{relation} {value}" for relation, value in facts.items() if rng.random() >= lost]
        made[name] = " ".join([f"{name}:", name, *kept])
    return made


def graph_questions(
    *,
    entities: Annotated[int, Field(ge=6, le=900)] = 100,
    world: int = 0,
    hops: Annotated[list[Annotated[int, Field(ge=1, le=8)]], Field(min_length=1)] = [1, 2, 3, 4],  # noqa: B006
    lost: Rate = 0.0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` questions about an invented graph, cycling through the numbers of `hops`.

    The answer is that of the graph, and the metadata have the documents to search. With `lost` the documents are no
    faithful copy of it: they leave out that share of the facts, so that some questions cannot be answered (filter
    `solvable`). The family names the hops (`graph2`). Raise StepError if the space holds too few.
    """
    rng, graph = np.random.default_rng([seed, split == "test"]), make_graph(entities, world)
    documents, names = write_documents(entities, world, lost), list(graph)

    def draw(rows: dict[str, Row]) -> Row | None:
        count = hops[len(rows) % len(hops)]
        path = [names[int(rng.integers(len(names)))]]
        chain = [RELATIONS[int(i)] for i in rng.integers(len(RELATIONS), size=count)]
        for relation in chain:
            path.append(graph[path[-1]][relation])
        text = f"{' of '.join([*reversed(chain), path[0]])}?"
        about = {"hops": count, "path": path, "documents": list(documents.values())}
        row = make_row(f"graph{count}", text, path[-1], about, salt=f"graph {world}")
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE * size, "graph_questions", split, "raise `entities` or `hops`")


def graph_walker(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next search or the answer to a question of `graph_questions`, from the documents in the prompt alone.

    Where a document does not say what is needed, the answer is `unknown`. At `error_rate` it takes another word of the
    last document. Raise StepError if the prompt has no such question.
    """
    chain, at = _read_question(row)
    shown = _read_results(row)
    for relation, text in zip(chain, shown, strict=False):
        facts = read_document(text, at)
        if relation not in facts:
            return UNKNOWN
        at = facts[relation]
    if shown and rng.random() < error_rate:
        words = shown[-1].split()[1:]
        at = words[int(rng.integers(len(words)))]
    return at if len(shown) >= len(chain) else f"search: {at}"


def read_document(text: str, entity: str) -> dict[str, str]:
    """Return what a document says about an entity; nothing if it is about another one."""
    title, _, rest = text.partition(": ")
    words = rest.split()[1:]
    return dict(zip(words[::2], words[1::2], strict=False)) if title == entity else {}


def _read_question(row: Row) -> tuple[list[str], str]:
    """Return the relations of the question from the inside out, and the entity at which they begin."""
    first = next((i for i, message in enumerate(row["prompt"]) if message["role"] == "assistant"), len(row["prompt"]))
    *chain, start = str(row["prompt"][first - 1]["content"]).removesuffix("?").split(" of ")
    if not chain or not set(chain) <= set(RELATIONS) or " " in start:
        raise StepError(f"teacher graph_walker: row {row['id']} is no question of `graph_questions`")
    return list(reversed(chain)), start


def _read_results(row: Row) -> list[str]:
    """Return the answers to the turns so far."""
    messages = row["prompt"]
    return [str(b["content"]) for a, b in pairwise(messages) if a["role"] == "assistant"]
