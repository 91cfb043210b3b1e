"""Questions about titled documents that take a search and an open page for every fact, and reports on what was found.

A title is `bam river`, its document `bam river zed`. A report plans, cites what was read, and answers:
`plan: twin, river. report: bam twin tok [1]; tok river zed [2]. answer: zed`.
"""

import json
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_metadata
from learning.toy_tasks.encyclopaedia import UNKNOWN, fact_questions
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, make_row
from schemas.errors import StepError


def deep_questions(
    *,
    towns: Annotated[int, Field(ge=4, le=300)] = 15,
    world: int = 0,
    hops: Annotated[list[Annotated[int, Field(ge=1, le=6)]], Field(min_length=1)] = [1, 2],  # noqa: B006
    lost: Rate = 0.0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Return `fact_questions` whose metadata have `titles` to search and `documents` to open.

    With `lost` that share of the documents is missing from both, so that some questions cannot be answered.
    """
    rows = fact_questions(towns=towns, world=world, hops=hops, size=size, seed=seed, split=split, test_share=test_share)
    rng = np.random.default_rng([world, towns, 11])
    documents = [text for text in read_metadata(rows[0])["documents"] if rng.random() >= lost]
    titles = [text.rpartition(" ")[0] for text in documents]
    return [row | {"metadata": json.dumps({"documents": documents, "titles": titles})} for row in rows]


def deep_finder(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next turn for a question of `deep_questions`: `search: bam twin`, `open: bam twin`, the answer.

    Where a document is missing the answer is `unknown`. At `error_rate` it repeats its last search, or answers with
    another word. Raise StepError for other questions.
    """
    messages = row["prompt"]
    first = next((i for i, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
    *chain, at = str(messages[first - 1]["content"]).removesuffix("?").split(" of ")
    if not chain:
        raise StepError(f"teacher deep_finder: row {row['id']} is no question of `deep_questions`")
    said = [str(message["content"]) for message in messages[first::2]]
    shown = [str(message["content"]) for message in messages[first + 1 :: 2]]
    opened = [text for call, text in zip(said, shown, strict=False) if call.startswith("open:")]
    if said and said[-1].startswith("search:"):
        if rng.random() < error_rate:
            return said[-1]
        wanted = said[-1].removeprefix("search: ")
        return f"open: {wanted}" if wanted in shown[-1].splitlines() else UNKNOWN
    for relation, text in zip(reversed(chain), opened, strict=False):
        words = text.split()
        at = words[2] if len(words) == 3 and words[:2] == [at, relation] else UNKNOWN
    if len(opened) < len(chain) and at != UNKNOWN:
        return f"search: {at} {list(reversed(chain))[len(opened)]}"
    return opened[0].split()[0] if opened and rng.random() < error_rate else at


def traces(
    *,
    towns: Annotated[int, Field(ge=4, le=300)] = 15,
    world: int = 0,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Return what searches for `deep_questions` have read, to be reported on: the question and the documents opened."""
    made = []
    for row in deep_questions(towns=towns, world=world, size=size, seed=seed, split=split, test_share=test_share):
        facts = {tuple(text.split()[:2]): text.split()[2] for text in read_metadata(row)["documents"]}
        *chain, at = str(row["prompt"][0]["content"]).removesuffix("?").split(" of ")
        read = []
        for relation in reversed(chain):
            read.append(f"{at} {relation} {facts[at, relation]}")
            at = facts[at, relation]
        text = f"{row['prompt'][0]['content']} {'; '.join(read)}"
        made.append(make_row("trace", text, at, {"read": read}, salt=f"trace {world}"))
    return made


def report_writer(row: Row, rng: np.random.Generator) -> str:
    """Write the report on a trace: a plan, then every document with its number, then the answer."""
    read = read_metadata(row).get("read")
    if not read:
        raise StepError(f"teacher report_writer: row {row['id']} is no trace of `traces`")
    plan = ", ".join(text.split()[1] for text in read)
    cited = "; ".join(f"{text} [{number}]" for number, text in enumerate(read, 1))
    return f"plan: {plan}. report: {cited}. answer: {row['answer']}"
