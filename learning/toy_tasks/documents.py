"""Problems over a document that must be read completely: nine kinds of questions, each with a metric that suits it.

A document lists names with numbers, `ann 12, bob 7, cat 30, …`, with words between them that no question is about; the
question follows it. The kinds are those of GoLongRL (2026), with the metric of each: `lookup` (precise retrieval) exact
match, `choice` (comprehension) accuracy, `listing` (exhaustive retrieval) F1 of sets, `total` (numerical reasoning)
equal numbers, `extraction` overlap of intervals, `matching` share of the answers that occur, `ranking` NDCG, `ordering`
share of pairs in order, `summary` ROUGE-L.
"""

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks.rows import Size, Split, TestShare, draw_rows, hash_text, is_in_split, make_row
from schemas.errors import StepError

Kind = Literal["lookup", "choice", "listing", "total", "extraction", "matching", "ranking", "ordering", "summary"]
Entries = list[tuple[str, int]]
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
FILLER = np.array(
    ["amber", "birch", "cedar", "delta", "ember", "field", "grove", "haven", "inlet", "jetty", "knoll", "ledge"]
)
"""Words between entries; none is as short as a name of one letter."""
MAX_DRAWS = 20
"""Draws per requested problem after which the space counts as exhausted."""


def documents(
    *,
    kind: Kind,
    size: Size,
    seed: int = 0,
    split: Split,
    test_share: TestShare = 0.2,
    entries: Annotated[int, Field(ge=4, le=2000)] = 24,
    largest: Annotated[int, Field(ge=9, le=10_000)] = 99,
    letters: Annotated[int, Field(ge=1, le=8)] = 3,
    filler: Annotated[int, Field(ge=0, le=100)] = 0,
) -> list[Row]:
    """Generate `size` problems of one kind over documents of so many entries, for the train or test split.

    `letters` is the length of a name; with three, an entry takes about seven characters, 40 entries about 300. `filler`
    words of five letters follow each entry. Raise StepError if there are too few names or documents.
    """
    if entries > 26**letters:
        raise StepError(f"documents: no {entries} different names of {letters} letter(s); raise `letters`")
    rng = np.random.default_rng([seed, entries, largest, letters, *kind.encode()])

    def draw(_: dict[str, Row]) -> Row | None:
        made = _document(rng, entries, largest, letters)
        words = rng.choice(FILLER, (entries, filler)).tolist()
        text = ", ".join(" ".join([name, str(value), *rest]) for (name, value), rest in zip(made, words, strict=True))
        question, answer = QUESTIONS[kind](made, rng)
        if not is_in_split(hash_text(f"documents\n{text}"), split, test_share):
            return None
        return make_row(kind, f"{text}; {question}", answer, {"entries": entries}, salt=f"documents\n{kind}")

    return draw_rows(draw, size, size * MAX_DRAWS, f"documents {kind}", split, "raise `entries` for longer documents")


def _document(rng: np.random.Generator, entries: int, largest: int, letters: int) -> Entries:
    """Return entries with distinct names, and distinct numbers if there are enough."""
    names: list[str] = []
    while len(names) < entries:
        name = "".join(rng.choice(LETTERS, letters))
        if name not in names:
            names.append(name)
    values = rng.choice(np.arange(1, largest + 1), entries, replace=largest < entries)
    return list(zip(names, (int(v) for v in values), strict=True))


def _lookup(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    name, value = made[int(rng.integers(len(made)))]
    return f"{name}?", str(value)


def _choice(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    one, other = (made[i] for i in _some(rng, len(made), 2))
    return f"{one[0]} or {other[0]}?", max(one, other, key=lambda entry: (entry[1], entry[0]))[0]


def _matching(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    values = sorted(made[i][1] for i in _some(rng, len(made), 2))
    return f"{' '.join(map(str, values))}?", " ".join(name for name, value in made if value in values)


def _summary(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    """Ask for the entries that exceed all before them."""
    highest = [name for i, (name, value) in enumerate(made) if value > max((v for _, v in made[:i]), default=0)]
    return "records?", " ".join(highest)


def _total(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    chosen = [made[i] for i in _some(rng, len(made), 2)]
    return f"{'+'.join(name for name, _ in chosen)}?", str(sum(value for _, value in chosen))


def _ranking(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    best = sorted(made, key=lambda entry: (-entry[1], entry[0]))[:3]
    return "top 3?", " ".join(name for name, _ in best)


def _ordering(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    places = _some(rng, len(made), 3)
    return f"order {' '.join(made[i][0] for i in places)}?", " ".join(made[i][0] for i in sorted(places))


def _extraction(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    first, last = sorted(_some(rng, len(made), 2))
    return f"{made[first][0]} to {made[last][0]}?", f"{first + 1}-{last + 1}"


def _listing(made: Entries, rng: np.random.Generator) -> tuple[str, str]:
    bound = sorted(value for _, value in made)[-3]
    return f"from {bound}?", " ".join(name for name, value in made if value >= bound)


QUESTIONS: dict[str, Callable[[Entries, np.random.Generator], tuple[str, str]]] = {
    "lookup": _lookup,
    "choice": _choice,
    "listing": _listing,
    "total": _total,
    "extraction": _extraction,
    "matching": _matching,
    "ranking": _ranking,
    "ordering": _ordering,
    "summary": _summary,
}


def _some(rng: np.random.Generator, size: int, count: int) -> list[int]:
    return [int(i) for i in rng.choice(size, count, replace=False)]
