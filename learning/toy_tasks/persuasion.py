"""Persuasion in four turns: a partner whom either facts or stories move, which shows only in how it answers.

The persuader makes two appeals, asks, and takes leave. A partner who has heard an appeal of the kind that moves it says
yes. `learning.toy_tasks.environments.persuasion` plays the partner.
"""

import re
from typing import Literal

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, choose, make_row
from schemas.errors import StepError

Kind = Literal["facts", "story"]
APPEALS: dict[str, tuple[str, ...]] = {
    "facts": ("one in five starves", "two coins feed four", "ten homes have no roof"),
    "story": ("mia is hungry", "tom has no shoes", "lea sleeps in a tent"),
}
"""What either kind of partner is moved by."""
BORED = {"facts": "numbers bore me", "story": "tales bore me"}
"""What a partner answers to an appeal of the kind that does not move it."""
MOVED, YES, NO, UNMOVED = "go on", "yes i give", "no", "hm"
BEG, ASK, THANKS, BYE = "please please", "will you give ?", "thank you", "good bye"
TURNS = 4
NAMES = {
    "train": ("anna", "ben", "cleo", "dan", "ella", "finn", "gwen", "hugo", "iris", "jack", "kira", "leo"),
    "test": ("rosa", "sam", "tess", "umar", "vera", "will"),
}
GREETINGS = ("hi i am {}", "{} here", "yes ? this is {}", "hello {} speaking")


def persuasions(*, split: Split, size: Size, seed: int = 0) -> list[Row]:
    """Generate partners, whose kind the `answer` is. Names of the train and the test split differ.

    What a partner says first does not show its kind. Raise StepError if there are fewer than `size`.
    """
    rows = [
        make_row("persuasion", greeting.format(name), kind, {}, salt=f"persuasion {kind}")
        for name in NAMES[split]
        for greeting in GREETINGS
        for kind in APPEALS
    ]
    return choose("persuasions", split, rows, size, seed)


def find_kind(text: str) -> str | None:
    """Return the kind of an appeal; None for a turn that is none."""
    said = " ".join(text.split())
    return next((kind for kind, appeals in APPEALS.items() if said in appeals), None)


def poor_persuader(row: Row, rng: np.random.Generator, *, begs: Rate = 0.3) -> str:
    """Write the next turn of a persuader who never tries the other kind: a second appeal is of the first one's kind.

    At the rate `begs` it begs in place of the second appeal.
    """
    said = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    if not said:
        return _pick(APPEALS[str(rng.choice(list(APPEALS)))], rng)
    if len(said) == 1:
        return BEG if rng.random() < begs else _pick(APPEALS[find_kind(said[0]) or "facts"], rng)
    if len(said) == 2:
        return ASK
    return THANKS if row["prompt"][-1]["content"] == YES else BYE


def hindsight_controller(row: Row, rng: np.random.Generator) -> str:
    """Write which turn of a dialogue should have been another, and what: `2: mia is hungry`.

    It is the turn after the one that bored the partner, of the other kind. Raise StepError for a problem that shows no
    dialogue of `whole_talks`; for one in which nothing bored the partner, write `none`.
    """
    shown = str(row["prompt"][-1]["content"])
    turns = re.findall(r"^agent (\d+): .*\npartner: (.*)$", shown, re.MULTILINE)
    if not turns:
        raise StepError(f"teacher hindsight_controller: row {row['id']} shows no turn `agent 1: …` that is answered")
    for number, answer in turns[:-1]:
        bored = next((kind for kind, text in BORED.items() if text == answer), None)
        if bored is not None:
            (other,) = APPEALS.keys() - {bored}
            return f"{int(number) + 1}: {_pick(APPEALS[other], rng)}"
    return "none"


def _pick(items: tuple[str, ...], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]
