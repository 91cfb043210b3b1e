"""Solutions with a label per step: TRL's stepwise rows, and those of PRM800K and Math-Shepherd."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from learning.data.rows import Row
from learning.data.sources.columns import Values
from learning.data.sources.preferences import LABELS
from learning.data.sources.records import BadRow, Record
from learning.data.sources.texts import read_prompt, read_text

MARK = "ки"
"""What ends a step in the texts of Math-Shepherd."""
SIGNS = {"+": True, "-": False}
"""What stands in the place of the mark in its labels."""
FIRST_STEP = re.compile(r"\s*Step 1:")
SHAPES = (
    frozenset({"prompt", "completions", "labels"}),
    frozenset({"question", "label"}),
    frozenset({"input", "label"}),
)
"""Columns of TRL's rows, of PRM800K and of Math-Shepherd."""


def expand_ratings(records: Iterable[Record], map_columns: Callable[[Values], Values]) -> Iterator[Record]:
    """Yield the records; one of PRM800K becomes one per rated solution, as in TRL's version of the data set.

    Each alternative at a step is a solution of its own, which begins with the steps chosen before, and the chosen steps
    together are the last. The label of a step is whether its rating is 1. A solution's id is that of its record and a
    number.
    """
    for record in records:
        fields = {} if record.problem else record.values
        try:
            fields = map_columns(fields) if fields else fields
            steps = _read_rated_steps(fields)
            solutions = [] if steps is None else list(_list_solutions(steps))
        except BadRow as error:
            yield Record(record.file, record.number, record.values, str(error))
            continue
        if steps is None:
            yield Record(record.file, record.number, fields, record.problem, record.text)
            continue
        rest = {name: value for name, value in fields.items() if name not in ("question", "label")}
        problem = fields["question"]["problem"]
        for number, solution in enumerate(solutions, 1):
            texts, labels = zip(*solution, strict=True)
            values = {"id": f"{record.file}:{record.number}.{number}", "prompt": problem}
            yield Record(record.file, record.number, {**rest, **values, "completions": [*texts], "labels": [*labels]})


def _read_rated_steps(fields: Values) -> list[Any] | None:
    """Return the steps of a record of PRM800K; None for other records. Raise BadRow."""
    question, label = fields.get("question"), fields.get("label")
    if not isinstance(question, dict) or not isinstance(label, dict):
        return None
    steps = label.get("steps")
    if not isinstance(question.get("problem"), str) or not isinstance(steps, list) or not steps:
        raise BadRow("`question` has no text `problem`, or `label` no list `steps`")
    return steps


def _list_solutions(steps: list[Any]) -> Iterator[list[tuple[str, bool]]]:
    """Yield the solutions of a tree of rated steps, each a list of steps with their labels. Raise BadRow."""
    before: list[tuple[str, bool]] = []
    for number, step in enumerate(steps, 1):
        if not isinstance(step, dict) or not isinstance(step.get("completions") or [], list):
            raise BadRow(f"step {number} of `label` is no object with `completions`")
        rated = [_read_rated(one, number) for one in step.get("completions") or ()]
        chosen = step.get("chosen_completion")
        if chosen is not None and not (isinstance(chosen, int) and 0 <= chosen < len(rated)):
            raise BadRow(f"step {number} of `label`: chosen_completion {chosen!r} is none of {len(rated)}")
        for place, one in enumerate(rated):
            if place != chosen:
                yield [*before, one]
        if chosen is not None:
            before = [*before, rated[chosen]]
        elif step.get("human_completion"):
            human = step["human_completion"]
            before = [*before, (str(human["text"] if isinstance(human, dict) else human), True)]
        else:
            return
    if before:
        yield before


def _read_rated(one: Any, number: int) -> tuple[str, bool]:
    if not isinstance(one, dict) or not isinstance(one.get("text"), str):
        raise BadRow(f"step {number} of `label`: a completion has no text")
    return one["text"], one.get("rating") == 1


def convert_steps(fields: Values) -> Row:
    """Return a solution with a label per step. Raise BadRow."""
    if isinstance(fields.get("input"), str) and MARK in fields["input"]:
        prompt, texts, labels = _split_marked(read_text(fields, "input"), read_text(fields, "label"))
        fields = {**fields, "prompt": prompt}
    else:
        texts, labels = fields.get("completions"), fields.get("labels")
    if fields.get("prompt") is None:
        raise BadRow("no `prompt` with `completions` and `labels`")
    if not isinstance(texts, list) or not texts:
        raise BadRow("`completions` is no list of steps")
    steps = [{"role": "assistant", "content": _read_step(text, i)} for i, text in enumerate(texts, 1)]
    return {"prompt": read_prompt(fields), "steps": steps, "labels": check_labels(labels, steps)}


def check_labels(labels: Any, steps: Sequence[Any]) -> list[float]:
    """Return one number from 0 to 1 per step. Raise BadRow."""
    if not isinstance(labels, list) or len(labels) != len(steps):
        count = f"{len(labels)} labels" if isinstance(labels, list) else "no list of labels"
        raise BadRow(f"{count} for {len(steps)} steps")
    return [_read_label(label, number) for number, label in enumerate(labels, 1)]


def _split_marked(text: str, label: str) -> tuple[str, list[str], list[bool]]:
    """Return question, steps and labels of a row of Math-Shepherd: `label` has a sign for each mark of `input`."""
    parts = text.split(MARK)
    labels, place = [], 0
    for part in parts[:-1]:
        place += len(part) + 1
        sign = label[place - 1 : place]
        if sign not in SIGNS:
            raise BadRow(f"`label` has {sign!r} where `input` has {MARK}; it must be + or -")
        labels.append(SIGNS[sign])
    question, first = _split_question(parts[0])
    return question, [first, *(part.strip() for part in parts[1:-1])], labels


def _split_question(text: str) -> tuple[str, str]:
    match = FIRST_STEP.search(text)
    if match is None:
        raise BadRow("`input` has no `Step 1:`, at which the question ends")
    return text[: match.start()].strip(), text[match.start() :].strip()


def _read_step(text: Any, number: int) -> str:
    if not isinstance(text, str):
        raise BadRow(f"step {number} is no text but {type(text).__name__}")
    if not text.strip():
        raise BadRow(f"step {number} is empty")
    return text


def _read_label(label: Any, number: int) -> float:
    """Return a label as a number from 0 to 1."""
    if isinstance(label, str):
        label = LABELS.get(label.strip().lower(), label)
    if isinstance(label, bool | int | float) and math.isfinite(label) and 0 <= label <= 1:
        return float(label)
    raise BadRow(f"label {number} is {str(label)[:80]!r}; labels are true, false or numbers from 0 to 1")
