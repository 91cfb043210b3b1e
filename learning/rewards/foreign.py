"""Reward functions written for other libraries, called as they are: TRL's and verl's.

The function stands in the folder of the recipe or on Python's path, and is named by its import path.
"""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learning.data.rows import Row, read_metadata
from learning.lookup import find
from learning.samples.sample import Sample
from schemas.base import JsonObject
from schemas.errors import StepError
from schemas.use import ForeignUse


def _drop(*values: object, **named: object) -> None:
    """Log nothing: posttrain records the scores of every reward by itself."""


LOGS = {"log_extra": _drop, "log_metric": _drop}
"""Functions that TRL passes to rewards to log by."""


@dataclass(frozen=True)
class TrainerState:
    """What rewards may ask of TRL's `trainer_state`."""

    global_step: int
    """Iterations before this one."""
    max_steps: int
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True


OF_RL = ("completion_ids", "trainer_state")
"""What TRL passes besides columns, and only samples of a stage that trains have."""


def trl(
    rows: list[Row],
    completions: list[str],
    samples: list[Sample] | None = None,
    step: int | None = None,
    max_steps: int | None = None,
    *,
    function: ForeignUse,
    as_messages: bool = False,
    kwargs: JsonObject = {},  # noqa: B006 — read only
) -> list[float | None]:
    """Scores of a function with TRL's signature, `f(prompts, completions, completion_ids, **columns)`.

    `columns` are those of the data, one list each; `answer` is one. Prompts and completions are texts, or with
    `as_messages` lists of messages, as TRL passes those of conversational data. In `rl`, `completion_ids` are the
    tokens of the completions, and `trainer_state` has `global_step` (iterations so far) and `max_steps`. With
    `optional: true` on each of several rewards, None leaves a reward out of the sum, as in TRL. `kwargs` are passed as
    they are. The function may be `async`; what it passes to `log_extra` and `log_metric` is dropped.
    """
    columns: dict[str, Any] = _collect_columns(rows)
    if step is not None and max_steps is not None:
        columns["trainer_state"] = TrainerState(step, max_steps)
    if samples is not None and all(sample.completion_ids for sample in samples):
        columns["completion_ids"] = [list(sample.completion_ids) for sample in samples]
    prompts = [row["prompt"] if as_messages else _join_prompt(row["prompt"]) for row in rows]
    answers: list[Any] = (
        [[{"role": "assistant", "content": text}] for text in completions] if as_messages else completions
    )
    given = {**columns, **LOGS, **kwargs, "prompts": prompts, "completions": answers}
    return list(_call(find(function), given))


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
    It returns a number, or a map whose `score` counts, and may be `async`. `ground_truth` is the row's answer;
    `data_source` and `extra_info` are columns of the data (without: `{}`), and `data_source` also an option.
    """
    called = find(function)
    notes = [read_metadata(row) for row in rows]
    columns = {
        "data_source": [note.get("data_source", data_source) for note in notes],
        "solution_str": completions,
        "ground_truth": [row["answer"] for row in rows],
        "extra_info": [note.get("extra_info") or {} for note in notes],
    }
    if "solution_strs" in inspect.signature(called).parameters:
        scores = _call(called, {f"{name}s": values for name, values in columns.items()} | kwargs)
    else:
        each = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        scores = [_call(called, given | kwargs) for given in each]
    return [_read_score(function, score) for score in scores]


def _read_score(function: ForeignUse, score: Any) -> Any:
    """Return the score that a function of verl gave, by itself or in a map. Raise StepError for a map without one."""
    if isinstance(score, dict) and "score" not in score:
        keys = ", ".join(str(key) for key in score) or "none"
        raise StepError(f"reward {function.use}: the map that it returns has no `score`; its keys: {keys}")
    return score["score"] if isinstance(score, dict) else score


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
        if missing[0] in OF_RL:
            raise StepError(f"reward {name} takes `{missing[0]}`, which only samples of an `rl` stage have")
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
