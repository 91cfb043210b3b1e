"""Outings: six things to do, of which a person would like one; who asks about three preferences knows which.

A grammar imagines people, conversations and critiques, as a language model would; `outings` are people who are really
met, with the facts that the environment `interview` tells.
"""

import json

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Rate, Size, Split, hash_text
from schemas.errors import StepError

ACTIVITIES: dict[str, tuple[bool, bool, bool]] = {
    "beach": (True, True, False),
    "hike": (True, False, True),
    "picnic": (True, False, False),
    "spa": (False, True, False),
    "gym": (False, False, True),
    "museum": (False, False, False),
}
"""What each is: outdoors, in water, active."""
TRAITS = ("outdoors", "water", "active")
NAMES = (
    *("anna", "ben", "cleo", "dan", "ella", "finn", "gwen", "hugo"),
    *("iris", "jack", "kira", "leo", "mia", "noah", "olga", "paul"),
)
OTHERS = ("rosa", "sam", "tess", "umar", "vera", "will")
"""Names of people who are met, and never imagined."""
PERSON, TALK, JUDGE = "imagine a person", "imagine the talk", "judge the talk"


def outing_imagination(row: Row, rng: np.random.Generator, *, guesses: Rate = 0.2, repeats: Rate = 0.2) -> str:
    """Write what the last words of a problem ask for: a person, a talk with the person it names, or a critique."""
    text = str(row["prompt"][-1]["content"])
    if text.endswith(PERSON):
        return describe_person(_pick(NAMES, rng), _pick(tuple(ACTIVITIES), rng))
    if text.endswith(TALK):
        return write_talk(" ".join(text.removesuffix(TALK).split()[-7:]), rng, guesses=guesses, repeats=repeats)
    if text.endswith(JUDGE):
        person, _, talk = text.removesuffix(JUDGE).strip().partition("\n")
        return judge_talk(person, talk)
    raise StepError(f"teacher outing_imagination: row {row['id']} asks for no person, talk or critique")


def outings(*, split: Split, size: Size, seed: int = 0) -> list[Row]:
    """Generate people who are met: `train` ones have names that are imagined, too. Some may be met more than once."""
    rng = np.random.default_rng(seed)
    return [
        _meet(_pick(NAMES if split == "train" else OTHERS, rng), _pick(tuple(ACTIVITIES), rng), n, seed)
        for n in range(size)
    ]


def describe_person(name: str, activity: str) -> str:
    """Return a person as text: name and preferences."""
    return " ".join(
        [name, *(f"{trait} {_say(is_so)}" for trait, is_so in zip(TRAITS, ACTIVITIES[activity], strict=True))]
    )


def write_talk(person: str, rng: np.random.Generator, *, guesses: float, repeats: float) -> str:
    """Return a talk with a person, a line for each turn."""
    name, *traits = person.split()
    wants = dict(zip(traits[::2], traits[1::2], strict=True))
    asked: list[str] = []
    lines = [f"partner: {greet(name)}"]
    for _ in range(int(rng.integers(1, len(TRAITS) + 1))):
        new = [trait for trait in TRAITS if trait not in asked]
        trait = _pick(tuple(asked), rng) if asked and rng.random() < repeats else _pick(tuple(new), rng)
        asked.append(trait)
        lines += [f"agent: {trait}?", f"partner: {wants[trait]}"]
    fitting = [one for one, of in ACTIVITIES.items() if all(_say(of[TRAITS.index(t)]) == wants[t] for t in asked)]
    chosen = _pick(tuple(ACTIVITIES) if rng.random() < guesses else tuple(fitting), rng)
    return "\n".join([*lines, f"agent: = {chosen}"])


def judge_talk(person: str, talk: str) -> str:
    """Return the critique of a talk: good if it ends with what the person would like."""
    traits = person.split()[1:]
    activity = talk.splitlines()[-1].removeprefix("agent: = ")
    return "good" if [_say(is_so) for is_so in ACTIVITIES[activity]] == traits[1::2] else "bad"


def greet(name: str) -> str:
    """Return what a person says first."""
    return f"i am {name} what shall i do ?"


def _meet(name: str, activity: str, number: int, seed: int) -> Row:
    facts = dict(zip(TRAITS, (_say(is_so) for is_so in ACTIVITIES[activity]), strict=True))
    return {
        "id": hash_text(f"outing {name} {activity} {number} {seed}"),
        "prompt": [{"role": "user", "content": greet(name)}],
        "answer": activity,
        "family": "outings",
        "metadata": json.dumps({"facts": facts}),
    }


def _say(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _pick(items: tuple[str, ...], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]
