"""Patients of a toy clinic: what they have is hidden until they are asked, and decides the illness."""

from itertools import combinations
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.data.shapley import compute_shapley, weigh_softly
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row

SYMPTOMS = ("fever", "cough", "rash", "ache", "chill", "cramp", "itch", "faint")
ILLNESSES = (
    *("agra", "bela", "cora", "dima", "elva", "fara", "gola", "hexa", "ista", "jura"),
    *("kera", "lota", "mira", "nola", "ovra", "pika", "quta", "rima", "sola", "tura"),
)
"""Names of illnesses."""
SIGNS = ("fever", "cough", "rash")
"""Yes-or-no facts of a consultation: two of them decide the illness, which two depends on the ward."""
NAMES = ("cold", "flu", "gout", "mump")
WARDS = {"red": (0, 1), "blue": (1, 2), "gold": (0, 2)}
"""Places of the deciding signs."""
DRAWS = 50
"""Draws per requested problem after which the space counts as exhausted."""


def list_illnesses() -> dict[str, tuple[str, ...]]:
    """Return the four symptoms of each of the twenty illnesses; no two illnesses have the same."""
    sets = list(combinations(SYMPTOMS, 4))
    chosen = np.random.default_rng(0).permutation(len(sets))[: len(ILLNESSES)]
    return {name: sets[int(i)] for name, i in zip(ILLNESSES, sorted(chosen.tolist()), strict=True)}


def patients(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    record: Literal["complaint", "whole"] = "complaint",
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate patients with one of twenty illnesses of four symptoms each, for the environment `interview`.

    The prompt has the first complaint, or with `record: whole` all four symptoms. The answer is the illness; metadata
    have the `facts` (each of eight symptoms: yes or no) and a `rubric` of the patient's own: naming the illness (5),
    two of its symptoms other than the complaint (2 each), naming another illness (−4), and mentioning a symptom that is
    absent (−4). Patients are numbered, and split by their number. Raise StepError if there are fewer than `size`.
    """
    rng = np.random.default_rng([seed, split == "test"])
    illnesses = list_illnesses()

    def draw(rows: dict[str, Row]) -> Row | None:
        number, name = int(rng.integers(1000)), ILLNESSES[int(rng.integers(len(ILLNESSES)))]
        own = [illnesses[name][int(i)] for i in rng.permutation(4)]
        shown = own[:1] if record == "complaint" else sorted(own)
        text = f"{number:03d} {' '.join(shown)}"
        if not is_in_split(hash_text(f"patient {number}"), split, test_share):
            return None
        facts = {symptom: "yes" if symptom in own else "no" for symptom in SYMPTOMS}
        rubric = [
            {"criterion": "names the illness", "weight": 5, "evidence": [name]},
            *({"criterion": f"mentions {symptom}", "weight": 2, "evidence": [symptom]} for symptom in own[1:3]),
            {"criterion": "names another illness", "weight": -4, "evidence": [n for n in ILLNESSES if n != name]},
            {
                "criterion": "mentions an absent symptom",
                "weight": -4,
                "evidence": [s for s in SYMPTOMS if s not in own],
            },
        ]
        return make_row("patients", text, name, {"facts": facts, "shown": shown, "rubric": rubric}, salt=name)

    return draw_rows(draw, size, DRAWS * size, "patients", split, "lower `size`")


def consultations(
    *,
    split: Split,
    size: Size,
    seed: int = 0,
    temperature: Annotated[float, Field(gt=0)] = 2.0,
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate cases `417 red fever no` with three yes-or-no signs, one of them shown, and four illnesses.

    Two signs decide the illness; which ones depends on the ward, the word after the number. Metadata have the `facts`,
    those that are `shown`, and the `worth` of the hidden ones: the softmax of their Shapley values for the probability
    of the right answer, over `temperature`. Cases are split by their number. Raise StepError if there are fewer than
    `size`.
    """
    rng = np.random.default_rng([seed, split == "test"])

    def draw(rows: dict[str, Row]) -> Row | None:
        number, ward = int(rng.integers(1000)), list(WARDS)[int(rng.integers(len(WARDS)))]
        values = [bool(rng.integers(2)) for _ in SIGNS]
        shown = [int(rng.integers(len(SIGNS)))]
        if not is_in_split(hash_text(f"consultation {number}"), split, test_share):
            return None
        deciding = WARDS[ward]
        hidden = [place for place in range(len(SIGNS)) if place not in shown]
        chances = [
            compute_chance(deciding, {*shown, *(p for bit, p in enumerate(hidden) if mask >> bit & 1)})
            for mask in range(1 << len(hidden))
        ]
        weights = weigh_softly(compute_shapley(chances, len(hidden)), temperature)
        words = [f"{SIGNS[place]} {'yes' if values[place] else 'no'}" for place in shown]
        metadata = {
            "facts": {sign: "yes" if value else "no" for sign, value in zip(SIGNS, values, strict=True)},
            "shown": [SIGNS[place] for place in shown],
            "worth": {SIGNS[place]: weight for place, weight in zip(hidden, weights, strict=True)},
        }
        name = NAMES[2 * values[deciding[0]] + values[deciding[1]]]
        return make_row("consultations", f"{number:03d} {ward} {' '.join(words)}", name, metadata, salt=str(values))

    return draw_rows(draw, size, DRAWS * size, "consultations", split, "lower `size`")


def compute_chance(deciding: tuple[int, int], known: set[int]) -> float:
    """Return the probability of naming the right one of four illnesses from the known signs."""
    return 0.25 * 2 ** len(known & {*deciding})
