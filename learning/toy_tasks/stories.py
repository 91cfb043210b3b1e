"""Stories of a few sentences from a small grammar, with rules for which sentences may follow.

A problem is the beginning of a story, a completion its next sentence. A sentence is incoherent if it involves a dead
person, if a thing is found that a person already has, or if a person loses a thing that they do not have.
"""

import re
from collections.abc import Iterator
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, hash_text, is_in_split

NAMES = ("ann", "bob", "eve", "tom")
THINGS = ("key", "map", "ring", "lamp")
COMMON = ("{who} sleeps.", "{who} sings.", "{who} meets {other}.")
RARE = ("{who} finds the {thing}.", "{who} loses the {thing}.", "{who} dies.", "{who} tricks {other}.")
SPACE = 100_000
"""Draws after which the space counts as exhausted."""


def openings(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    most: Annotated[int, Field(ge=1)] = 3,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` distinct coherent stories of one to `most` sentences, for the train or test split.

    Raise StepError if the space holds too few.
    """
    rng = np.random.default_rng(seed)

    def draw(_: dict[str, Row]) -> Row | None:
        story: list[str] = []
        for _sentence in range(int(rng.integers(1, most + 1))):
            story.append(draw_sentence(story, rng))
        text = "\n".join(story)
        digest, prompt = hash_text(text), [{"role": "user", "content": text}]
        if not is_in_split(digest, split, test_share):
            return None
        return {"id": digest, "prompt": prompt, "answer": None, "family": "stories", "metadata": "{}"}

    return draw_rows(draw, size, SPACE, "openings", split, "lower `size` or raise `most`")


def storyteller(
    row: Row,
    rng: np.random.Generator,
    *,
    error_rate: Rate = 0.0,
    rare: Rate = 0.3,
) -> str:
    """Write the next sentence of a story, at `rare` an unusual event, at `error_rate` an impossible one."""
    story = row["prompt"][-1]["content"].split("\n")
    if rng.random() < error_rate and (wrong := [s for s in iterate_sentences() if count_broken_rules(story, s)]):
        return wrong[int(rng.integers(len(wrong)))]
    return draw_sentence(story, rng, rare)


def draw_sentence(story: list[str], rng: np.random.Generator, rare: float = 0.3) -> str:
    """Return a random coherent next sentence."""
    kind = RARE if rng.random() < rare else COMMON
    fitting = [s for s in iterate_sentences(kind) if not count_broken_rules(story, s)] or [
        s for s in iterate_sentences() if not count_broken_rules(story, s)
    ]
    return fitting[int(rng.integers(len(fitting)))]


def iterate_sentences(templates: tuple[str, ...] = COMMON + RARE) -> Iterator[str]:
    """Yield every sentence of some templates, in a fixed order."""
    for template in templates:
        for who in NAMES:
            if "{other}" in template:
                yield from (template.format(who=who, other=other) for other in NAMES if other != who)
            elif "{thing}" in template:
                yield from (template.format(who=who, thing=thing) for thing in THINGS)
            else:
                yield template.format(who=who)


def count_broken_rules(story: list[str], sentence: str) -> int:
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
    match = re.fullmatch(r"(\w+) (\w+)(?: (?:the )?(\w+))?\.", sentence)
    return (match[1], match[2], match[3] or "") if match else None


SENTENCES = frozenset(iterate_sentences())
