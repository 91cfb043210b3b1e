"""Questions about an encyclopaedia of single facts, answers to ask for, and experts that read only what they find.

A document is `bam river zed`, as in `learning.toy_tasks.atlas`. `river of twin of tok?` needs a document for every
relation, from the inside out; `search: tok twin` finds the first one. `pose zed` wants a question with this answer.
"""

from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.atlas import RELATIONS, list_texts, make_atlas
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row
from schemas.errors import StepError

Towns = Annotated[int, Field(ge=4, le=300)]
POSE = "pose "
"""Begins a problem that wants a question."""
UNKNOWN = "unknown"
SPACE = 50
"""Draws per requested question after which the space counts as exhausted."""


def fact_questions(
    *,
    towns: Towns = 10,
    world: int = 0,
    hops: Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=1)] = [1, 2, 3],  # noqa: B006
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` questions of one or more facts, cycling through the numbers of `hops`.

    All relations but the last one are twins. The metadata have the documents to search; the family names the hops
    (`facts2`). Raise StepError if there are too few questions.
    """
    rng, atlas = np.random.default_rng([seed, split == "test"]), make_atlas(towns, world)
    facts, names = {(town, kind): value for town, kind, value in atlas}, sorted({town for town, _, _ in atlas})
    documents = list_texts(atlas)

    def draw(rows: dict[str, Row]) -> Row | None:
        count, start = hops[len(rows) % len(hops)], names[int(rng.integers(len(names)))]
        chain = ["twin"] * (count - 1) + [RELATIONS[int(rng.integers(1, len(RELATIONS)))]]
        at = start
        for relation in chain:
            at = facts[at, relation]
        text = f"{' of '.join([*reversed(chain), start])}?"
        row = make_row(f"facts{count}", text, at, {"documents": documents}, salt=f"facts {world}")
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, SPACE * size, "fact_questions", split, "raise `towns` or `hops`")


def fact_answers(*, towns: Towns = 10, world: int = 0) -> list[Row]:
    """Return every word that is the answer to a question about the towns of a world, to ask for: `pose zed`.

    The metadata have the documents to search.
    """
    atlas = make_atlas(towns, world)
    values = sorted({value for _, relation, value in atlas if relation != "twin"})
    about = {"documents": list_texts(atlas)}
    return [make_row("answers", f"{POSE}{value}", value, about, salt=f"answers {world}") for value in values]


def fact_finder(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next search or the answer to a question of `fact_questions`, from the documents in the prompt alone.

    Where no document says what is needed, the answer is `unknown`. At `error_rate` it takes another word of the last
    documents. Raise StepError if the prompt has no such question.
    """
    text, results = _split_prompt(row)
    chain, at = _read_chain(text)
    if not chain:
        raise StepError(f"teacher fact_finder: row {row['id']} is no question of `fact_questions`")
    for relation, found in zip(chain, results, strict=False):
        at = _read_facts(found).get((at, relation), UNKNOWN)
        if at == UNKNOWN:
            return UNKNOWN
    if results and rng.random() < error_rate:
        words = results[-1].split()
        at = words[int(rng.integers(len(words)))]
    return at if len(results) >= len(chain) else f"search: {at} {chain[len(results)]}"


def fact_proposer(
    row: Row, rng: np.random.Generator, *, hops: Annotated[int, Field(ge=1)] = 3, error_rate: Rate = 0.0
) -> str:
    """Write the next search or the question for a problem of `fact_answers`, from the documents in the prompt alone.

    A document that ends with the answer, `bam river zed`, gives the question `river of bam?`. Every second time it
    looks for the town whose twin is bam instead, for a question of more `hops`. At `error_rate` the question has
    another relation. Raise StepError if the prompt wants no question.
    """
    text, results = _split_prompt(row)
    if not text.startswith(POSE):
        raise StepError(f"teacher fact_proposer: row {row['id']} is no problem of `fact_answers`")
    at, chain = text.removeprefix(POSE), list[str]()
    for found in results:
        town, relation = next((key for key, value in _read_facts(found).items() if value == at), (at, ""))
        at, chain = town, [*chain, *([relation] if relation else [])]
    if not results:
        return f"search: {at}"
    if len(chain) == len(results) < hops and rng.random() < 0.5:
        return f"search: twin {at}"
    if chain and rng.random() < error_rate:
        chain[0] = RELATIONS[int(rng.integers(len(RELATIONS)))]
    return f"{' of '.join([*chain, at])}?"


def fact_reader(message: str) -> str:
    """Answer the question in the last line of a message from the documents in the lines before it alone.

    Where they do not say what is needed, or the question is none of `fact_questions`, the reply is `unknown`.
    """
    *lines, question = message.splitlines() or [""]
    facts, (chain, at) = _read_facts("\n".join(lines)), _read_chain(question)
    for relation in chain:
        at = facts.get((at, relation), UNKNOWN)
    return at if chain else UNKNOWN


def _split_prompt(row: Row) -> tuple[str, list[str]]:
    """Return the problem of a conversation, and the answers to its turns so far."""
    messages = row["prompt"]
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    return str(messages[first - 1]["content"]), [str(message["content"]) for message in messages[first + 1 :: 2]]


def _read_facts(text: str) -> dict[tuple[str, str], str]:
    """Return the values that documents, one per line, give to towns and relations."""
    words = [line.split() for line in text.splitlines()]
    return {(town, relation): value for town, relation, value in (three for three in words if len(three) == 3)}


def _read_chain(question: str) -> tuple[list[str], str]:
    """Return the relations of a question from the inside out, and the town at which they begin; none if it is none."""
    *chain, start = question.strip().removesuffix("?").split(" of ")
    return list(reversed(chain)), start
