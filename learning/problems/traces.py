"""Traces: whole conversations of an agent with an environment, written in the style of ReAct, to imitate or to show.

A trace is a row of type chat whose completion has the agent's turns and the environment's answers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from learning.data.rows import Row, read_rows, write_rows
from learning.data.thought_lines import Style, retell_trace, write_demonstration
from learning.environments.lookup_environment import build_environment
from learning.lookup import Inner, ProblemsFunction, TeacherFunction
from schemas.errors import StepError
from schemas.references import ChatRef, PromptsRef
from schemas.use import EnvUse

Count = Annotated[int, Field(ge=0)]


def play_traces(context: Any, *, by: TeacherFunction, env: EnvUse) -> dict[str, float]:
    """Let a teacher play every problem of the input `prompts`, and write its conversations as the output `traces`.

    For a stage of kind `python`. An episode that does not end within `max_turns` is written as far as it went. Metrics:
    `traces`, and `solved`, the share that earned at least 1.
    """
    guide: Inner = by
    environment, rows, solved = build_environment(env, {}), list[Row](), 0
    for place, row in enumerate(read_rows(context.input("prompts"), "prompts")):
        rng = np.random.default_rng([context.seed, place])
        episode, messages, earned = environment.begin(row, context.seed + place), list(row["prompt"]), 0.0
        for _ in range(env.max_turns):
            messages.append({"role": "assistant", "content": guide.bound(row | {"prompt": messages}, rng)})
            outcome = episode.step(messages[-1]["content"])
            earned += outcome.reward
            if outcome.done:
                break
            messages.append({"role": "user", "content": outcome.observation})
        completion = messages[len(row["prompt"]) :]
        rows.append(row | {"completion": completion if completion[-1]["role"] == "assistant" else completion[:-1]})
        solved += earned >= 1.0
    write_rows(context.output("traces"), "chat", rows)
    return {"traces": len(rows), "solved": solved / max(len(rows), 1)}


def retell(
    context: Any,
    *,
    style: Style,
    demonstrations: Annotated[list[Count], Field(min_length=1)] = [0],  # noqa: B006 — never changed
    of_family: bool = True,
) -> dict[str, float]:
    """Write the traces of the input `traces` in a style, as the output `lessons`.

    For a stage of kind `python`. `act_only` strips every thought, `reason_only` every action and what was observed; a
    trace of which nothing is left that could be imitated is left out. `demonstrations` are numbers of worked examples
    before the question, in turn: [0, 2] puts two before every other one (`demonstrated`). Metric: `lessons`.
    """
    traces = read_rows(context.input("traces"), "chat")
    retold = [row | {"completion": retell_trace(row["completion"], style)} for row in traces]
    kept = [row for row in retold if row["completion"]]
    if not kept:
        raise StepError(f"retell: no trace has lines of the style {style}: `Thought: …`, `Action: …`, `Answer: …`")
    lessons = [
        row | {"prompt": _show(row, traces, demonstrations[place % len(demonstrations)], style, of_family)}
        for place, row in enumerate(kept)
    ]
    write_rows(context.output("lessons"), "chat", lessons)
    return {"lessons": len(lessons)}


def demonstrated(
    *,
    of: ProblemsFunction | None = None,
    data: PromptsRef | None = None,
    traces: ChatRef,
    k: Annotated[int, Field(ge=1)] = 2,
    style: Style = "react",
    of_family: bool = True,
) -> list[Row]:
    """Return problems whose prompts begin with `k` worked examples of `traces`, written in a style (ReAct 2022).

    The problems are those of the generator `of`, or of `data`. The examples are the first traces, `of_family`: of the
    problem's own family, that are about another question and have lines of the style. Raise StepError if there are
    fewer.
    """
    if (of is None) == (data is None):
        raise StepError("demonstrated: give either a generator of problems, `of`, or a stage with problems, `data`")
    generate: Inner | None = of
    rows = read_rows(Path(str(data)), "prompts") if generate is None else generate()
    shown = read_rows(Path(traces), "chat")
    return [row | {"prompt": _show(row, shown, k, style, of_family)} for row in rows]


def _show(row: Row, traces: Sequence[Row], k: int, style: Style, of_family: bool) -> list[Row]:
    """Return the prompt of a row with `k` worked examples before its question."""
    *before, question = row["prompt"]
    if not k:
        return [*before, question]
    examples: list[str] = []
    for trace in traces:
        asked = str(trace["prompt"][-1]["content"])
        fits = not of_family or trace["family"] == row["family"]
        if fits and asked != question["content"] and retell_trace(trace["completion"], style):
            examples.append(write_demonstration(asked, trace["completion"], style))
        if len(examples) == k:
            text = "\n\n".join([*examples, f"Question: {question['content']}"])
            return [*before, {**question, "content": text}]
    where = f" of family {row['family']}" if of_family else ""
    raise StepError(f"row {row['id']}: there are {len(examples)} traces{where} to show in style {style}, not {k}")
