"""Generators of problems: each returns prompts rows (`learning.data.rows`).

Train and test never share a problem, whatever the seeds: the side of a problem depends only on its text.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from learning.data.rows import Row
from learning.reasoning_gym.families import BLOCK, dataset, families
from schemas.base import JsonObject
from schemas.errors import StepError

STALE_DRAWS = 2000
"""Draws without a new problem after which a space counts as exhausted, at least."""


def reasoning_gym(
    *,
    family: str,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
    style: Literal["full", "short"] = "full",
    config: JsonObject = {},  # noqa: B006 (never changed; a recipe needs the default to be readable)
) -> list[Row]:
    """Generate `size` distinct problems of a family of reasoning-gym, for the train or test split.

    A problem is held out if the hash of family and question is below `test_share`. `style: short` shows only the text
    after the last colon of the question (`12 + 7 - 3 =`, `sun`). `config` are options of the family. Raise StepError
    for an unknown family or option, and if the family has too few distinct problems.
    """
    if family not in families():
        near = difflib.get_close_matches(family, families(), 1)
        raise StepError(f"reasoning_gym: no family {family!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    rows: dict[str, Row] = {}
    questions: set[str] = set()
    stale = drawn = 0
    for entry, origin in draw_entries(family, seed, config):
        drawn, stale = drawn + 1, stale + 1
        question = " ".join(entry["question"].split())
        if question not in questions:
            stale = 0
            questions.add(question)
            if is_held_out(family, question, test_share) == (split == "test"):
                add_row(rows, make_row(family, entry, origin, style))
        if len(rows) == size:
            return list(rows.values())
        if stale > max(STALE_DRAWS, 4 * len(questions)):
            break
        if drawn > STALE_DRAWS + 100 * size / min(test_share, 1 - test_share):
            break
    raise StepError(
        f"reasoning_gym {family}: {drawn} draws gave {len(questions)} distinct problems, {len(rows)} of them {split}, "
        f"but size is {size}; lower `size`, widen the space by `config`, or change `test_share` ({test_share})"
    )


def draw_entries(family: str, seed: int, config: JsonObject) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yield problems without end, each with its origin.

    reasoning-gym gives problem i the seed `seed + i`; a hash spreads the seeds so that blocks do not overlap.
    """
    block = 0
    while True:
        digest = hashlib.sha256(f"{family}\n{seed}\n{block}".encode()).digest()
        origin = {"family": family, "config": config, "seed": int.from_bytes(digest[:4], "big") >> 1}
        source = dataset(family, json.dumps(config, sort_keys=True), origin["seed"])
        for index in range(BLOCK):
            yield source[index], origin | {"index": index}
        block += 1


def is_held_out(family: str, question: str, test_share: float) -> bool:
    """Return whether a problem is in the test split; this depends only on its text."""
    digest = hashlib.sha256(f"held out\n{family}\n{question}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < test_share * 2**64


def make_row(family: str, entry: JsonObject, origin: JsonObject, style: str) -> Row:
    """Return a prompts row; `learning.reasoning_gym.families.entry_of` makes the entry again from its metadata."""
    text = entry["question"].strip()
    if style == "short":
        text = text.rpartition(": ")[2].strip()
    return {
        "id": hashlib.sha256(f"{family}\n{text}".encode()).hexdigest()[:16],
        "prompt": [{"role": "user", "content": text}],
        "answer": None if entry["answer"] is None else str(entry["answer"]),
        "family": family,
        "metadata": json.dumps(origin, sort_keys=True),
    }


def add_row(rows: dict[str, Row], row: Row) -> None:
    """Add a row under its id; raise StepError if another question has the same id."""
    if row["id"] in rows:
        shown = row["prompt"][0]["content"]
        raise StepError(
            f"reasoning_gym {row['family']}: `style: short` makes two problems look alike ({shown!r}); use `full`"
        )
    rows[row["id"]] = row
