"""Remarks about rows from outside that can be read and are hardly meant, such as all the same or without answers."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from flows.planning.data_sources import read_outside_rows
from lineage.layout import Layout
from lineage.reports.formatting import format_count
from schemas.errors import PosttrainError, Problem
from schemas.recipe.load import Recipe
from schemas.stages.data import Data
from schemas.stages.evaluate import Evaluate
from schemas.stages.rl import Rl
from schemas.steps.step_info import Port, StepInfo
from schemas.training import Training
from schemas.use import RewardUse

if TYPE_CHECKING:
    from learning.data.rows import Row

LOOKED_AT = 2000
"""Rows of a source that are looked at."""
COMPARING = ("answers", "mathematics", "computer_algebra")
"""Families of rewards that compare with the answer of a row."""
TURNS = ("prompt", "completion", "chosen", "rejected", "steps")
"""Columns of messages."""
MARKER = re.compile(
    r"<\|(?:im_start|im_end|start_header_id|end_header_id|begin_of_text|eot_id|start|user|assistant|system|endoftext)\|>"
    r"|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>"
)
"""What chat templates write around messages."""
FEW = 5
"""Problems of an evaluation below which that is remarked."""
SAME = 0.5
"""Share of rows that repeat an earlier one from which on that is remarked."""


def find_row_remarks(recipe: Recipe, layout: Layout) -> Iterator[tuple[bool, Problem]]:
    """Yield what is odd about the rows of a step that all come from files, and whether it refuses the recipe."""
    for info in recipe.steps.values():
        for port in info.ports:
            if port.path not in ("prompts", "data") or not port.steps:
                continue
            rows = read_port_rows(recipe, layout, port)
            if not rows:
                continue
            if isinstance(info.stage, Evaluate) and len(rows) < FEW:
                text = f"{format_count(len(rows), 'problem')}: that measures next to nothing"
                yield False, info.problem(port.path, text, "give hundreds; `plan` says what a gate can show")
            if port.path == "prompts":
                yield from _check_answers(info, port, rows)
                yield from ((False, problem) for problem in _check_ends(info, port, rows))
            yield from ((False, problem) for problem in _check_markers(info, port, rows))
            if isinstance(info.stage, Training):
                yield from ((False, problem) for problem in _check_variety(info, port, rows))
            if isinstance(info.stage, Evaluate) and port.path == "prompts":
                yield from ((False, problem) for problem in _check_repeated(info, port, rows))


def read_port_rows(recipe: Recipe, layout: Layout, port: Port) -> "list[Row]":
    """Return the first rows of a port; none if a step makes some of them."""
    rows: list[Row] = []
    for name in port.steps:
        stage = recipe.stages[name]
        if not isinstance(stage, Data) or any(given.steps for given in recipe.ports(name)):
            return []
        rows += read_outside_rows(recipe, layout, name, LOOKED_AT)
    return rows[:LOOKED_AT]


def _check_answers(info: StepInfo, port: Port, rows: "list[Row]") -> Iterator[tuple[bool, Problem]]:
    """Yield rewards that compare with answers which no row has: nothing could be scored."""
    uses: list[RewardUse] = getattr(info.stage, "rewards", [])
    comparing = next((use.use for use in uses if use.use.partition(".")[0] in COMPARING), None)
    answers = [row["answer"] for row in rows if row.get("answer") is not None]
    if answers:
        if comparing is not None:
            yield from ((False, problem) for problem in _check_some_answers(info, port, answers, len(rows), comparing))
        return
    others = sorted({name for row in rows[:100] for name in _list_metadata(row)})
    columns = f"; its other columns: {', '.join(others)}" if others else ""
    advice = "name the column of the answers: `columns: {answer: …}`" if others else "give the rows a column `answer`"
    if comparing is not None:
        yield (
            True,
            info.problem(port.path, f"no row has an `answer`, and `{comparing}` compares with it{columns}", advice),
        )
    elif any(":" in use.use for use in uses):
        yield False, info.problem(port.path, f"no row has an `answer`{columns}", f"if the reward reads it: {advice}")


def _check_some_answers(info: StepInfo, port: Port, answers: list[str], rows: int, comparing: str) -> Iterator[Problem]:
    """Yield that some rows cannot be scored, having no answer, and that no completion equals a list."""
    if missing := rows - len(answers):
        text = f"{missing} of {rows} rows have no `answer`: `{comparing}` gives their completions no score"
        yield info.problem(port.path, text, "give them answers, or remove them")
    lists = sum(answer.startswith("[") and answer.endswith("]") for answer in answers)
    if lists == len(answers):
        text = f"every `answer` is a list, such as {answers[0][:40]}, and `{comparing}` compares with it as a text"
        yield info.problem(port.path, text, "give each row one text or number as its `answer`")


def _check_ends(info: StepInfo, port: Port, rows: "list[Row]") -> Iterator[Problem]:
    """Yield that prompts end with a message of the assistant, after which the model would write another one."""
    ended = sum(row["prompt"][-1]["role"] == "assistant" for row in rows)
    if ended:
        text = f"{ended} of {len(rows)} prompts end with a message of the assistant: the model writes another after it"
        yield info.problem(port.path, text, "end prompts with a message of the user")


def _check_markers(info: StepInfo, port: Port, rows: "list[Row]") -> Iterator[Problem]:
    """Yield that messages hold what chat templates write, so that the model would see it twice."""
    found = [match[0] for row in rows if (match := MARKER.search(_join_messages(row))) is not None]
    if found:
        many = "rows have" if len(found) > 1 else "row has"
        text = f"{len(found)} {many} {found[0]} in a message: the chat template of the model writes such tokens itself"
        yield info.problem(port.path, text, "give the bare texts; see both: posttrain plan RECIPE --examples 3")


def _join_messages(row: "Row") -> str:
    """Return the text of a row's messages; texts to continue have no template."""
    from learning.data.messages import PLAIN  # most recipes have no sources

    turns = (turn for name in TURNS for turn in row.get(name) or () if turn["role"] != PLAIN)
    return "\n".join(str(turn.get("content") or "") for turn in turns)


def _list_metadata(row: "Row") -> list[str]:
    from learning.data.rows import read_metadata  # pyarrow takes 0.1 s, and most recipes have no sources

    try:
        return list(read_metadata(row))
    except (PosttrainError, ValueError, TypeError):
        return []


def _check_variety(info: StepInfo, port: Port, rows: "list[Row]") -> Iterator[Problem]:
    """Yield that most rows are the same, or that there are fewer than one batch takes."""
    key: Callable[[Row], str] = _prompt_of if isinstance(info.stage, Rl) else _text_of
    different, what = len({key(row) for row in rows}), "prompts" if isinstance(info.stage, Rl) else "rows"
    first = "the first " if len(rows) >= LOOKED_AT else ""
    if len(rows) > 1 and different <= SAME * len(rows):
        text = f"of {first}{len(rows)} {what} only {different} {'is' if different == 1 else 'are'} different"
        yield info.problem(port.path, text, "look at them: posttrain plan RECIPE --examples 3")
    batch = _count_batch(info)
    if len(rows) < batch:
        number = f"{len(rows)} {what[:-1] if len(rows) == 1 else what}"
        text = f"{number} for batches of {batch}: the same ones are in every step"
        yield info.problem(port.path, text, "give more rows, or a smaller batch")


def _check_repeated(info: StepInfo, port: Port, rows: "list[Row]") -> Iterator[Problem]:
    """Yield that problems of an evaluation are there twice: its intervals take each for an independent one."""
    answers: dict[str, str | None] = {}
    repeated = other = 0
    for row in rows:
        prompt, answer = _prompt_of(row), row.get("answer")
        repeated += prompt in answers
        other += answers.setdefault(prompt, answer) != answer
    if repeated:
        text = f"{repeated} of {len(rows)} problems repeat an earlier prompt" + (
            f", {other} of them with another answer" if other else ""
        )
        yield info.problem(port.path, f"{text}: the intervals are too narrow", "keep one row of each prompt")


def _count_batch(info: StepInfo) -> int:
    """Return the rows of one optimiser step."""
    stage = info.stage
    if isinstance(stage, Rl):
        return stage.generation_batch_size // stage.num_generations
    size = int(getattr(stage, "per_device_train_batch_size", 1))
    return size * int(getattr(stage, "gradient_accumulation_steps", 1))


def _prompt_of(row: "Row") -> str:
    return str([(turn["role"], turn["content"]) for turn in row["prompt"]])


def _text_of(row: "Row") -> str:
    return str([(turn["role"], turn.get("content")) for name in TURNS for turn in row.get(name) or ()])
