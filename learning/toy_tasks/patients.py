"""Invented diseases with records of patients and guideline cards: which disease has these four symptoms?

A record is `case dola: ache rash itch chill`, four of the disease's five symptoms, and a card `card dola: …` has all of
them. The tools `match` and `lookup` search both lists of the metadata.
"""

from functools import lru_cache
from itertools import combinations

import numpy as np

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row
from schemas.errors import StepError

SYMPTOMS = (
    *("ache", "rash", "itch", "chill", "cough", "faint", "tic", "burn"),
    *("cramp", "spot", "sweat", "numb", "pale", "limp", "wheeze", "blur"),
)
DISEASES, RECORDS, HAS = 30, 3, 5
"""Number of diseases, of records of each, and of symptoms of each."""
ASKED = HAS - 1
"""Symptoms that a record has, and a question."""
SPACE = 50
"""Draws per requested question after which the space counts as exhausted."""
Diseases = dict[str, tuple[str, ...]]


@lru_cache(maxsize=16)
def make_diseases(world: int) -> Diseases:
    """Return the symptoms of each disease; any four of a disease belong to no other one."""
    rng, made, taken = np.random.default_rng([world, DISEASES]), Diseases(), set[tuple[str, ...]]()
    words = [a + b + c + d for a in "bdkmnprst" for b in "aeiou" for c in "dklmnrsv" for d in "aeio"]
    names = [words[int(i)] for i in rng.permutation(len(words))]
    for _ in range(DISEASES * SPACE):
        drawn = tuple(SYMPTOMS[int(i)] for i in rng.choice(len(SYMPTOMS), size=HAS, replace=False))
        parts = set(combinations(sorted(drawn), ASKED))
        if not parts & taken:
            taken |= parts
            made[names[len(made)]] = drawn
        if len(made) == DISEASES:
            return made
    raise StepError(f"patients: no {DISEASES} diseases that four symptoms tell apart; choose another `world`")


@lru_cache(maxsize=16)
def write_corpus(world: int) -> tuple[list[str], list[str]]:
    """Return the records of patients and the cards."""
    rng, records = np.random.default_rng([world, RECORDS]), list[str]()
    for name, symptoms in make_diseases(world).items():
        for left_out in rng.choice(HAS, size=RECORDS, replace=False):
            records.append(f"case {name}: {' '.join(s for i, s in enumerate(symptoms) if i != left_out)}")
    return records, [f"card {name}: {' '.join(symptoms)}" for name, symptoms in make_diseases(world).items()]


def diagnoses(*, size: Size, seed: int = 0, split: Split, test_share: TestShare = 0.2, world: int = 0) -> list[Row]:
    """Generate `size` questions of four symptoms in random order, whose answer is the only disease that has them.

    The metadata have the lists `records` and `cards`, a script (match, look up, reason, diagnose), and two checklists:
    `evidence`, a record and the card of the disease among the results, and `structure`, the turns of a sound diagnosis.
    Raise StepError if the space holds too few.
    """
    rng, diseases = np.random.default_rng([seed, split == "test", world]), make_diseases(world)
    records, cards = write_corpus(world)

    def draw(rows: dict[str, Row]) -> Row | None:
        name = list(diseases)[int(rng.integers(len(diseases)))]
        chosen = [diseases[name][int(i)] for i in rng.permutation(HAS)[:ASKED]]
        asked = " ".join(chosen)
        about = {
            "records": records,
            "cards": cards,
            "script": [f"match: {asked}", f"lookup: {name}", f"reason: {name} fits", f"diagnose: {name}"],
            "evidence": [
                {"item": "a record of the disease is found", "evidence": [f"case {name}:"], "focus": "answer"},
                {"item": "the card of the disease is read", "evidence": [f"card {name}:"], "focus": "answer"},
            ],
            "structure": [
                {"item": "matches all symptoms", "evidence": [f"match: {asked}"]},
                {"item": "looks something up", "evidence": ["lookup:"]},
                {"item": "reasons about the disease", "evidence": [f"reason: {name}"]},
            ],
        }
        # Another order of the same symptoms is the same problem.
        digest = hash_text(f"diagnoses {world} {sorted(chosen)}")
        row = make_row("diagnoses", f"{asked}?", name, about, salt=f"diagnoses {world}")
        return row if is_in_split(digest, split, test_share) else None

    return draw_rows(draw, size, SPACE * size, "diagnoses", split, "lower `size`")
