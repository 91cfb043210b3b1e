"""Lines to fit: a table of 100 rows, of which 80 are given to a program and 20 are for its test.

A program is words, which stand for lines of Python: `load mean save` predicts the mean, `load line save` fits a line.
"""

import hashlib
import json
import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from learning.toy_tasks import kit
from schemas.errors import StepError

ROWS, GIVEN = 100, 80
LINES = {
    "load": 'table = load("train.csv")',
    "mean": "model = mean(table)",
    "line": "model = line(table)",
    "save": 'save(model, load("test.csv"))',
}
HEAD = "from kit import line, load, mean, save"
METHODS = ("mean", "line")
PATIENCE = 100

Points = list[tuple[float, float]]
Rate = Annotated[float, Field(ge=0, le=1)]


def expanded(text: str) -> str:
    """The Python that words stand for; a word without a meaning is called as a function that nobody has defined."""
    known = [LINES.get(word) or (f"{word}()" if word.isidentifier() else word) for word in text.split()]
    return "\n".join([HEAD, *known])


def points(row: Row) -> Points:
    """The whole table of a row. Raises StepError for a row that no table was made of."""
    try:
        told = json.loads(row["metadata"] or "")
        slope, intercept, noise, seed = (told[name] for name in ("slope", "intercept", "noise", "seed"))
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(f"row {row.get('id')}: no table; generate the problems with `fits`") from error
    rng = np.random.default_rng(seed)
    xs, errors = rng.uniform(-1, 1, ROWS), rng.normal(0, noise, ROWS)
    return [(float(x), float(intercept + slope * x + e)) for x, e in zip(xs, errors, strict=True)]


def score(predicted: list[float], table: Points) -> float | None:
    """s/(s + e) on the test's rows: e is the root of the mean squared error, s that of the test's own mean.

    None where it is not one number per row.
    """
    test = [y for _, y in table[GIVEN:]]
    if len(predicted) != len(test) or not all(map(math.isfinite, predicted)):
        return None
    middle = sum(test) / len(test)
    try:
        error, spread = (
            math.sqrt(sum((a - b) ** 2 for a, b in zip(test, other, strict=True)) / len(test))
            for other in (predicted, [middle] * len(test))
        )
    except OverflowError:  # further away than a number can say
        return 0.0
    return spread / (spread + error)


def score_of(method: str, table: Points) -> float:
    """The score of a method of the kit, computed here."""
    intercept, slope = getattr(kit, method)(table[:GIVEN])
    return score([intercept + slope * x for x, _ in table[GIVEN:]], table) or 0.0


def fits(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    noise: Annotated[float, Field(ge=0)] = 0.1,
    request: str = "fit",
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2,
) -> list[Row]:
    """Generate `size` tables for the train or test split; raise StepError if there are too few."""
    rng, rows = np.random.default_rng(seed), {}
    for _ in range(PATIENCE * size):
        told = {"slope": round(float(rng.choice((-1, 1)) * rng.uniform(1, 3)), 2)}
        told |= {"intercept": round(float(rng.uniform(-2, 2)), 2), "noise": noise, "seed": int(rng.integers(2**31))}
        name = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
        prompt = [{"role": "user", "content": request}]
        row = {"id": name, "prompt": prompt, "answer": None, "family": "fit", "metadata": json.dumps(told)}
        if (int(name, 16) < test_share * 2**64) == (split == "test"):
            rows.setdefault(name, row)
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"fits: {PATIENCE * size} draws gave {len(rows)} {split} tables, {size} were asked for")


def fit_turns(
    *,
    size: Annotated[int, Field(ge=1)],
    seed: int = 0,
    split: Literal["train", "test"],
    turns: Annotated[int, Field(ge=1)] = 4,
    slow: Rate = 0.5,
    noise: Annotated[float, Field(ge=0)] = 0.1,
) -> list[Row]:
    """Generate turns of an agent that tries random methods, `line` with probability `slow`; up to `turns` per table.

    A row is the messages so far, and as answer the next program.
    """
    rows = []
    for place, row in enumerate(fits(size=size, seed=seed, split=split, noise=noise)):
        rng, said, table = np.random.default_rng([seed, place]), list(row["prompt"]), points(row)
        for turn in range(int(rng.integers(1, turns + 1))):
            method = METHODS[int(rng.random() < slow)]
            program = f"load {method} save"
            rows.append(row | {"id": f"{row['id']}-{turn}", "prompt": list(said), "answer": program})
            seen = shown(score_of(method, table))
            said += [{"role": "assistant", "content": program}, {"role": "user", "content": seen}]
    return rows


def shown(of: float) -> str:
    """A score as it is told."""
    return f"{of:.2f}"
