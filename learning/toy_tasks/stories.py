"""Stories of a few sentences from a small grammar, with rules for which sentences may follow.

A problem is the beginning of a story, a completion its next sentence. A sentence is incoherent if it involves a dead
person, if a thing is found that a person already has, or if a person loses a thing that they do not have.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

NAMES = ("ann", "bob", "eve", "tom")
THINGS = ("key", "map", "ring", "lamp")
COMMON = ("{who} sleeps.", "{who} sings.", "{who} meets {other}.")
RARE = ("{who} finds the {thing}.", "{who} loses the {thing}.", "{who} dies.", "{who} tricks {other}.")
SPACE = 100_000
"""Draws after which the space counts as exhausted."""


def openings(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    most: Annotated[int, Field(ge=1)] = 3,
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` distinct coherent stories of one to `most` sentences, for the train or test split.

    Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng(seed)
    rows: dict[str, Row] = {}
    for _ in range(SPACE):
        story: list[str] = []
        for _ in range(int(rng.integers(1, most + 1))):
            story.append(coherent(story, rng))
        text = "\n".join(story)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        if (int(digest, 16) < test_share * 2**64) == (split == "test"):
            prompt = [{"role": "user", "content": text}]
            rows[digest] = {"id": digest, "prompt": prompt, "answer": None, "family": "stories", "metadata": "{}"}
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"openings: found {len(rows)} {split} stories of {size}; lower `size` or raise `most`")


def storyteller(
    row: Row,
    rng: np.random.Generator,
    *,
    error_rate: Annotated[float, Field(ge=0, le=1)] = 0.0,
    rare: Annotated[float, Field(ge=0, le=1)] = 0.3,
) -> str:
    """Write the next sentence of a story, at `rare` an unusual event, at `error_rate` an impossible one."""
    story = row["prompt"][-1]["content"].split("\n")
    if rng.random() < error_rate and (wrong := [s for s in every() if incoherence(story, s)]):
        return wrong[int(rng.integers(len(wrong)))]
    return coherent(story, rng, rare)


def coherent(story: list[str], rng: np.random.Generator, rare: float = 0.3) -> str:
    """Return a random coherent next sentence."""
    kind = RARE if rng.random() < rare else COMMON
    fitting = [s for s in every(kind) if not incoherence(story, s)] or [s for s in every() if not incoherence(story, s)]
    return fitting[int(rng.integers(len(fitting)))]


def every(templates: tuple[str, ...] = COMMON + RARE) -> Iterator[str]:
    """Yield every sentence of some templates, in a fixed order."""
    for template in templates:
        for who in NAMES:
            if "{other}" in template:
                yield from (template.format(who=who, other=other) for other in NAMES if other != who)
            elif "{thing}" in template:
                yield from (template.format(who=who, thing=thing) for thing in THINGS)
            else:
                yield template.format(who=who)


def incoherence(story: list[str], sentence: str) -> int:
    """Return how many rules a sentence breaks after a story; a sentence outside the grammar breaks one."""
    dead: set[str] = set()
    holder: dict[str, str] = {}
    for past in story:
        _happen(past, dead, holder)
    if not (words := _read(sentence)):
        return 1
    who, verb, what = words
    broken = int(who in dead) + int(what in dead)
    if verb == "finds":
        broken += int(what in holder)
    if verb == "loses":
        broken += int(holder.get(what) != who)
    return broken


def _happen(sentence: str, dead: set[str], holder: dict[str, str]) -> None:
    if not (words := _read(sentence)):
        return
    who, verb, what = words
    if verb == "dies":
        dead.add(who)
    elif verb == "finds":
        holder[what] = who
    elif verb == "loses":
        holder.pop(what, None)


def _read(sentence: str) -> tuple[str, str, str] | None:
    """Return subject, verb and object of a sentence; None if it is outside the grammar."""
    if (sentence := sentence.strip()) not in SENTENCES:
        return None
    found = re.fullmatch(r"(\w+) (\w+)(?: (?:the )?(\w+))?\.", sentence)
    return (found[1], found[2], found[3] or "") if found else None


SENTENCES = frozenset(every())
