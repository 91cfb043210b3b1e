"""Made-up rows in the form of a data set that is not on this machine: `--tiny --stand-ins` runs without any data.

Rows are small sums. A source's format, columns and templates are those that its recipe states; where it states none,
the rows have the usual format of the stage that reads them.
"""

import json
import re
from collections.abc import Iterable, Mapping

from flows.planning.stand_in_tasks import replace_missing_tasks
from lineage.digests import digest_of
from lineage.layout import Layout
from lineage.sources.resolve import find_source
from schemas.atomic_write import write_text_atomically
from schemas.base import JsonObject
from schemas.errors import PlanError
from schemas.evaluation_slots import SCORED_TASKS
from schemas.recipe.load import Recipe
from schemas.references import SCHEMES, STAND_INS
from schemas.row_formats import Emit, Format
from schemas.row_templates import is_template, parse_template
from schemas.stages.data import Source

ROWS = 16
USUAL: dict[Emit, Format] = {
    "chat": "messages",
    "preference_pairs": "preference",
    "prompts": "prompts",
    "step_labels": "steps",
}
"""Format of the rows of a source that states none."""
CONVERSATION = "messages"
"""Field of conversations."""


class StandIns:
    """Replaces the data of a recipe that are not on this machine."""

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self.recipe, self.layout = recipe, layout
        self.marks_turns = any(getattr(stage, "train_on", None) == "marked" for stage in recipe.stages.values())

    def replace(self, given: JsonObject, source: Source, emit: Emit) -> JsonObject:
        """Return a source as the recipe gives it, or with made-up rows if a file or data set of it is missing.

        Raise PlanError for a query, whose columns are unknown.
        """
        if all(self._is_here(reference) for reference in (source.from_, *source.tables.values())):
            return given
        if source.query is not None:
            raise PlanError(
                f"--stand-ins: {source.from_} is not on this machine, and the columns that its query reads are not "
                "known; fetch it, or give the recipe a profile instead"
            )
        rest = {key: value for key, value in given.items() if key not in ("subset", "split")}
        return {**rest, "from": self._write(source, emit)}

    def replace_tasks(self, task: JsonObject) -> JsonObject:
        """Return a task of an evaluation; those of lm-eval whose data are missing with made-up problems."""
        return replace_missing_tasks(task, self.layout) if task["use"] == SCORED_TASKS else task

    def _is_here(self, reference: str) -> bool:
        if reference.partition(":")[0] not in SCHEMES:
            return True  # a stage makes it
        try:
            find_source(reference, self.layout, self.recipe.folders)
        except PlanError:
            return False
        return True

    def _write(self, source: Source, emit: Emit) -> str:
        """Write rows in place of a source, and return their reference."""
        rows = [make_row(source, emit, number, self.marks_turns) for number in range(ROWS)]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        name = re.sub(r"\W+", "-", source.from_.partition(":")[2], flags=re.ASCII)[-60:].strip("-")
        file = self.layout.make_state() / STAND_INS / digest_of(text)[:16] / f"{name or 'rows'}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(file, text)
        return f"path:{file}"


def make_row(source: Source, emit: Emit, number: int, marks_turns: bool = False) -> JsonObject:
    """Return a row in the format and with the columns that a source states."""
    fields = _make_fields(source.format or USUAL[emit], emit, number, source.ratings, marks_turns)
    row: JsonObject = {}
    for field, column in source.columns.items():
        value = fields.pop(field, None)
        value = f"{field} {number}" if value is None else value
        if is_template(column):
            for _, path in parse_template(column):
                _place(row, path, value)
        else:
            row[column] = value
    return fields | row


def _place(row: JsonObject, path: tuple[str, ...], value: object) -> None:
    """Set a value inside of a row; a path is empty after the last part of a template."""
    for part in path[:-1]:
        row = row.setdefault(part, {})
    if path:
        row[path[-1]] = value


def _make_fields(
    name: Format, emit: Emit, number: int, ratings: Iterable[str] | Mapping[str, float], marks_turns: bool
) -> JsonObject:
    first, second = 1 + number, 1 + number * 7 % 5
    question = f"What is {first} plus {second}?"
    answer, wrong = str(first + second), str(first + second + 1)
    right_text, wrong_text = f"It is {answer}.", f"It is {wrong}."
    turn: JsonObject = {"role": "assistant", "content": right_text} | ({"train": True} if marks_turns else {})
    asked = [{"role": "user", "content": question}]
    by_format: dict[Format, JsonObject] = {
        "messages": {CONVERSATION: [*asked, turn]},
        "alpaca": {"instruction": "Add the numbers.", "input": question, "output": right_text},
        "prompt_completion": {"prompt": question, "completion": right_text},
        "text": {"text": f"{question} {right_text}"},
        "preference": {"prompt": question, "chosen": right_text, "rejected": wrong_text},
        "scored": {
            "prompt": question,
            "completions": [{"text": right_text, "score": 5.0}, {"text": wrong_text, "score": 1.0}],
        },
        "ratings": {
            "prompt": f"What is {1 + number // 2} plus 1?",
            "response": f"It is {2 + number // 2 + number % 2}.",
            **{column: float(number % 2) for column in ratings},
        },
        "labels": {
            "prompt": question,
            "completion": wrong_text if number % 2 else right_text,
            "label": number % 2 == 0,
        },
        "steps": {"prompt": question, "completions": [f"{question} ", wrong_text], "labels": [True, False]},
        "prompts": {"prompt": question, "answer": answer},
        "rows": _make_own(emit, number, asked, right_text, wrong_text, answer),
    }
    return by_format[name]


def _make_own(emit: Emit, number: int, asked: list[dict[str, str]], right: str, wrong: str, answer: str) -> JsonObject:
    """Return a row in posttrain's own format."""
    sides = {"completion": right} if emit == "chat" else {"chosen": right, "rejected": wrong}
    written = {} if emit == "prompts" else sides
    texts = {name: [{"role": "assistant", "content": text}] for name, text in written.items()}
    common = {"id": str(number), "prompt": asked, "answer": answer, "family": "stand-in", "metadata": "{}"}
    if emit == "step_labels":
        steps = [{"role": "assistant", "content": text} for text in (right, wrong)]
        return common | {"steps": steps, "labels": [1.0, 0.0]}
    return common | texts | ({"margin": 1.0} if emit == "preference_pairs" else {})
