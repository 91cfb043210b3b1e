"""Small competitions for the environment `ml`: tables of 60 rows with scripted boards of ten entries, and an agent."""

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from learning.data.leaderboards import METRICS
from learning.data.rows import Row
from learning.toy_tasks import competition_kit
from learning.toy_tasks.rows import Rate, Size, Split, TestShare, draw_rows, is_in_split, make_row, read_metadata

ROWS, GIVEN, ENTRIES = 60, 40, 10
COLUMNS = "abcdef"
Kind = Literal["regression", "classification", "majority"]
KINDS: tuple[Kind, ...] = ("regression", "classification", "majority")
SCALES = (1.0, 10.0, 100.0)
"""Units of the target of a regression."""
MAX_DRAWS = 60
"""Competitions drawn per row after which there are too few."""


def competitions(
    *,
    size: Size,
    seed: int = 0,
    split: Split,
    kinds: Annotated[list[Kind], Field(min_length=1)] = list(KINDS),  # noqa: B006 (never changed)
    columns: Annotated[int, Field(ge=1, le=6)] = 3,
    instruction: str = "",
    test_share: TestShare = 0.2,
) -> list[Row]:
    """Generate `size` competitions for the train or test split, cycling through `kinds`, which is also the family.

    A regression is linear in one of the columns, in a classification the sign of one decides, with some noise; in
    `majority` one value is frequent and no column matters. Which column it is only trials tell: `columns`, their
    number, is the difficulty. The board has ten entries between a method that ignores all columns and the right one;
    metadata have the right `best` call of the module `kit`. The prompt is the name of the competition after
    `instruction`. Raise StepError if there are too few.
    """
    rng = np.random.default_rng(seed)

    def draw(rows: dict[str, Row]) -> Row | None:
        row = _draw(rng, kinds[len(rows) % len(kinds)], columns, instruction)
        return row if is_in_split(row["id"], split, test_share) else None

    return draw_rows(draw, size, MAX_DRAWS * size, "competitions", split, "lower `size`")


def _draw(rng: np.random.Generator, kind: Kind, columns: int, instruction: str) -> Row:
    names = list(COLUMNS[:columns])
    right = int(rng.integers(columns))
    table = np.round(rng.uniform(-1, 1, (ROWS, columns)), 3)
    if kind == "regression":
        scale = SCALES[int(rng.integers(len(SCALES)))]
        slope = float(rng.choice((-1, 1)) * rng.uniform(1, 3))
        target = [f"{value:.4g}" for value in scale * (slope * table[:, right] + rng.normal(0, 0.2, ROWS))]
    else:
        likely = 0.5 + 0.4 * np.sign(table[:, right]) if kind == "classification" else np.full(ROWS, 0.8)
        target = ["yes" if chance else "no" for chance in rng.random(ROWS) < likely]
    head = ",".join(names)
    lines = [",".join(f"{value:g}" for value in row) for row in table]
    train = "\n".join([f"{head},y", *(f"{a},{b}" for a, b in zip(lines[:GIVEN], target[:GIVEN], strict=True))])
    metric, answers = "rmse" if kind == "regression" else "accuracy", target[GIVEN:]
    best = {"regression": f"line('{names[right]}')", "classification": f"split('{names[right]}')"}.get(kind, "most()")
    words = "numbers" if kind == "regression" else "words"
    about = {
        "info": {"data": f"columns {' '.join(names)}, y are {words}", "metric": metric},
        "files": {
            "train.csv": f"{train}\n",
            "test.csv": "\n".join([head, *lines[GIVEN:]]) + "\n",
            "kit.py": Path(competition_kit.__file__).read_text(),
        },
        "prelude": "from kit import *\n",
        "answers": answers,
        "metric": metric,
        "leaderboard": _make_board(kind, table[:, right], target),
        "best": best,
    }
    return make_row(kind, f"{instruction}compete", None, about, salt=json.dumps([train, answers]))


def _make_board(kind: Kind, column: np.ndarray, target: list[str]) -> list[float]:
    """Return ten scores, the best first: evenly from a little less than the right method's to those who guess."""
    answers = target[GIVEN:]
    score, _ = METRICS["rmse" if kind == "regression" else "accuracy"]
    given = target[:GIVEN]
    if kind == "regression":
        values = np.array(given, float)
        slope, intercept = np.polyfit(column[:GIVEN], values, 1)
        good = score([str(value) for value in intercept + slope * column[GIVEN:]], answers)
        poor = score([str(values.mean())] * len(answers), answers)
    else:
        most = max(sorted(set(given)), key=given.count)
        guess = score([most] * len(answers), answers)
        split = score(["yes" if value > 0 else "no" for value in column[GIVEN:]], answers)
        good, poor = (split, 0.5) if kind == "classification" else (guess, 0.4)
    return [round(float(value), 4) for value in np.linspace(good + (poor - good) * 0.05, poor, ENTRIES)]


def competitor(
    row: Row,
    rng: np.random.Generator,
    *,
    asks: bool = True,
    validates: Rate = 0.0,
    tries: Annotated[int, Field(ge=1)] | None = None,
) -> str:
    """Ask for the data, execute methods in random order, each once, and submit after `tries` of them.

    Without `tries` (null) the first is the right method: the expert. At the rate `validates` a method is validated
    before. The prompt must show all turns so far.
    """
    best, info = read_metadata(row, "competitions", lambda about: (about["best"], about["info"]["data"]))
    said = [str(message["content"]) for message in row["prompt"] if message["role"] == "assistant"]
    if asks and "request_info data" not in said:
        return "request_info data"
    names = info.removeprefix("columns ").partition(",")[0].split()
    number = info.endswith("numbers")
    methods = [f"{'line' if number else 'split'}('{name}')" for name in names] + ["mean()" if number else "most()"]
    done = [turn.removeprefix("execute_code ") for turn in said if turn.startswith("execute_code ")]
    left = [method for method in methods if method not in done]
    if len(done) >= (tries or 1) or not left:
        return "submit"
    checked = [turn.removeprefix("validate_code ") for turn in said if turn.startswith("validate_code ")]
    if checked and checked[-1] not in done:
        return f"execute_code {checked[-1]}"
    chosen = best if tries is None else left[int(rng.integers(len(left)))]
    return f"{'validate_code' if rng.random() < validates else 'execute_code'} {chosen}"
