"""Reward functions written for other libraries, called as they are: TRL's and verl's.

The function stands in the folder of the recipe or on Python's path, and is named by its import path.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from learning.data.rows import Row, read_metadata
from learning.lookup import find
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.use import ForeignUse


def _drop(*values: object, **named: object) -> None:
    """Log nothing: posttrain records the scores of every reward by itself."""


LOGS = {"log_extra": _drop, "log_metric": _drop}
"""Functions that TRL passes to rewards to log by."""


def trl(
    rows: list[Row],
    completions: list[str],
    *,
    function: ForeignUse,
    as_messages: bool = False,
    kwargs: JsonObject = {},  # noqa: B006 — read only
) -> list[float | None]:
    """Scores of a function with TRL's signature, `f(prompts, completions, **columns) -> list[float | None]`.

    `columns` are those of the data, one list each; `answer` is one. Prompts and completions are texts, or with
    `as_messages` lists of messages, as TRL passes those of conversational data. `kwargs` are passed as they are. The
    function may be `async`; what it passes to `log_extra` and `log_metric` is dropped.
    """
    columns = _collect_columns(rows)
    prompts = [row["prompt"] if as_messages else _join_prompt(row["prompt"]) for row in rows]
    answers: list[Any] = (
        [[{"role": "assistant", "content": text}] for text in completions] if as_messages else completions
    )
    given = {**columns, **LOGS, **kwargs, "prompts": prompts, "completions": answers}
    return _call(find(function), given)


def verl(
    rows: list[Row],
    completions: list[str],
    *,
    function: ForeignUse,
    data_source: str = "",
    kwargs: JsonObject = {},  # noqa: B006 — read only
) -> list[float | None]:
    """Scores of a function with verl's signature, `f(data_source, solution_str, ground_truth, extra_info=None)`.

    It is called for each completion, or, as by verl's manager `batch`, once for all if it takes `solution_strs`.
    It returns a number, or a map whose `score` counts. `ground_truth` is the row's answer; `data_source` and
    `extra_info` are columns of the data, and `data_source` also an option.
    """
    called = find(function)
    notes = [read_metadata(row) for row in rows]
    columns = {
        "data_source": [note.get("data_source", data_source) for note in notes],
        "solution_str": completions,
        "ground_truth": [row["answer"] for row in rows],
        "extra_info": [note.get("extra_info") for note in notes],
    }
    if "solution_strs" in inspect.signature(called).parameters:
        scores = _call(called, {f"{name}s": values for name, values in columns.items()} | kwargs)
    else:
        each = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        scores = [_call(called, given | kwargs) for given in each]
    return [score.get("score") if isinstance(score, dict) else score for score in scores]


def _call(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call with the arguments that the function takes by name. Raise StepError for one that it needs and lacks."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        taken = given
    else:
        taken = {parameter.name: given[parameter.name] for parameter in parameters if parameter.name in given}
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing := [name for name in required if name not in taken]:
        name = getattr(function, "__name__", "the function")
        raise StepError(f"reward {name} takes `{missing[0]}`, which the data lack; columns: {', '.join(sorted(given))}")
    made = function(**taken)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def _collect_columns(rows: list[Row]) -> dict[str, list[Any]]:
    """Return the columns of rows that are no messages, each with one value per row."""
    notes = [read_metadata(row) for row in rows]
    names = dict.fromkeys(name for note in notes for name in note)
    return {
        **{name: [note.get(name) for note in notes] for name in names},
        "answer": [row["answer"] for row in rows],
        "family": [row.get("family") for row in rows],
    }


def _join_prompt(messages: list[dict[str, Any]]) -> str:
    """Return a prompt as text: the content of its only message, or of all, one per paragraph."""
    return "\n\n".join(str(message.get("content") or "") for message in messages)
