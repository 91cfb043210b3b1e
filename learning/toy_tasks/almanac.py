"""Questions that need a tool: products too large to memorise, and weights in an almanac of fifty lines.

An almanac has lines such as `bora weighs 417`, with random names and weights for each world; train and test problems
have different worlds. `bora*236=` needs a search for the weight, then a calculator; questions about the whole almanac
have a table, for SQL. The metadata of a problem contains its solution as a script: the turns of an episode.
"""

import json
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.data.text_edits import mistaken
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row
from schemas.errors import StepError

Kind = Literal["product", "weight", "table", "digits"]
SPACE = 20
"""Draws per requested question after which the space counts as exhausted."""


@lru_cache(maxsize=512)
def draw_weights(number: int, held_out: bool, lines: int) -> dict[str, int]:
    """Return names and weights (100 to 999) of a world."""
    rng = np.random.default_rng([number, held_out, lines])
    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    names = [a + b for a in syllables for b in syllables]
    chosen = [names[int(i)] for i in rng.choice(len(names), size=lines, replace=False)]
    return {name: int(rng.integers(100, 1000)) for name in chosen}


def almanac(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    kinds: list[Kind] = ["product", "weight", "table"],  # noqa: B006 (never changed)
    lines: Annotated[int, Field(ge=2, le=1000)] = 50,
    worlds: Annotated[int, Field(ge=1)] = 20,
) -> list[Row]:
    """Generate `size` questions in equal shares: a `product`, a `weight`, the `table`, the sum of `digits`.

    They are about `worlds` almanacs of `lines` lines, different ones for each split; a question is in the test split if
    the hash of its text is below `test_share`. Raise StepError if the space holds too few.
    """
    rng, held_out = np.random.default_rng([seed, split == "test"]), split == "test"

    def draw(rows: dict[str, Row]) -> Row | None:
        kind, number = kinds[len(rows) % len(kinds)], int(rng.integers(worlds))
        text, script, notes = QUESTIONS[kind](draw_weights(number, held_out, lines), rng)
        if not is_in_split(hash_text(f"almanac\n{text}"), split, test_share):
            return None
        salt = f"almanac\n{split} {number} {lines}"
        return make_row(f"almanac_{kind}", text, script[-1], {"script": script, **notes}, salt=salt)

    return draw_rows(draw, size, SPACE * size, "almanac", split, "raise `worlds` or `lines`")


def _ask_product(world: dict[str, int], rng: np.random.Generator) -> tuple[str, list[str], Row]:
    """Return text, script and notes of `417*236=`, solved by one call of the calculator."""
    left, right = (int(n) for n in rng.integers(100, 1000, size=2))
    return f"{left}*{right}=", [f"calculator: {left}*{right}", str(left * right)], {}


def _ask_weight(world: dict[str, int], rng: np.random.Generator) -> tuple[str, list[str], Row]:
    """Return text, script and notes of `bora*236=`, solved by a search for the weight and a call of the calculator."""
    name, right = list(world)[int(rng.integers(len(world)))], int(rng.integers(100, 1000))
    script = [f"search: {name}", f"calculator: {world[name]}*{right}", str(world[name] * right)]
    return f"{name}*{right}=", script, {"documents": [f"{name} weighs {kg}" for name, kg in world.items()]}


def _ask_table(world: dict[str, int], rng: np.random.Generator) -> tuple[str, list[str], Row]:
    """Return text, script and notes of `sum above 417=`, solved by one SQL query."""
    how, least = ("sum", "count", "min")[int(rng.integers(3))], int(rng.integers(100, 800))
    heavy = [kg for kg in world.values() if kg > least]
    answer = {"sum": sum(heavy), "count": len(heavy), "min": min(heavy, default=None)}[how]
    query = f"sql: select {how}(kg) from things where kg>{least}"
    rows = [{"name": name, "kg": kg} for name, kg in world.items()]
    return f"{how} above {least}=", [query, "null" if answer is None else str(answer)], {"tables": {"things": rows}}


def _ask_digits(world: dict[str, int], rng: np.random.Generator) -> tuple[str, list[str], Row]:
    """Return text, script and notes of `digits of 417*236=`, solved by a snippet of Python."""
    left, right = (int(n) for n in rng.integers(100, 1000, size=2))
    snippet = f"python: print(sum(map(int,str({left}*{right}))))"
    return f"digits of {left}*{right}=", [snippet, str(sum(map(int, str(left * right))))], {}


QUESTIONS = {"product": _ask_product, "weight": _ask_weight, "table": _ask_table, "digits": _ask_digits}


def scripted(row: Row, rng: np.random.Generator, *, error_rate: Rate = 0.0) -> str:
    """Write the next turn of the problem's script, wrong at `error_rate`.

    The script holds actions: the next one is that after the `actions` of the metadata, or else after the turns of the
    prompt. A turn that asks for a memory gets that of the `memories` which belongs to the actions so far. Raise
    StepError if the problem has no script or no turn of it is left.
    """
    notes = json.loads(row["metadata"] or "{}")
    script, due = notes.get("script"), notes.get("actions")
    if notes.get("asks") == "memory":
        script, due = notes.get("memories"), due - 1
    if due is None:
        due = sum(message["role"] == "assistant" for message in row["prompt"])
    if script is None or due >= len(script):
        raise StepError(f"teacher scripted: row {row['id']} has no script of more than {due} turns")
    tool, colon, text = script[due].rpartition(": ")
    return tool + colon + (mistaken(text, rng) if rng.random() < error_rate else text)
