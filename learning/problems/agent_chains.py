"""Runs of teams of agents as data for one model: converted to chains, and cut where a tool answers.

For stages of kind `python`. A run is a row of type prompts whose metadata have a `log`, a list of calls in their order:
`[{"agent": "search", "input": "bam twin", "output": "bam twin zed"}, …]`.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from learning.data.agent_chains import AgentCall, split_chain, write_chain
from learning.data.rows import Row, read_metadata, read_rows, write_rows
from schemas.base import Schema
from schemas.errors import StepError

Tools = Annotated[list[str], Field(min_length=1)]


class LoggedCall(Schema):
    """A call of an agent as a log has it."""

    agent: str
    input: str = ""
    output: str


def read_log(row: Row) -> list[AgentCall]:
    """Return the calls of a run. Raise StepError for a row without a log."""
    written = read_metadata(row).get("log")
    try:
        calls = [LoggedCall.model_validate(call) for call in (written if isinstance(written, list) else [])]
    except ValidationError as error:
        raise StepError(f"run {row['id']}: its `log`: {error}") from error
    if not calls:
        raise StepError(
            f"run {row['id']}: its metadata need a `log`, such as "
            '[{"agent": "search", "input": "bam twin", "output": "bam twin zed"}]'
        )
    return [AgentCall(call.agent, call.input, call.output) for call in calls]


def distil(context: Any, *, tools: Tools, role_playing: bool = True) -> dict[str, float]:
    """Write the input `runs` as the output `chains`: one completion for each, in which tags activate the agents.

    `tools` are the agents whose answers are observations. Without `role_playing` only their calls and the last one,
    the answer, stay. Metrics: `chains`, and `calls`, the mean number of calls that a team needs for what is one
    completion then. Raise StepError for a run that could not be read back from its chain.
    """
    rows, count = list[Row](), 0
    for row in read_rows(context.input("runs"), "prompts"):
        calls, question = read_log(row), str(row["prompt"][-1]["content"])
        kept = calls
        if not role_playing:  # what was left out is no longer in what the last one reads
            kept = [*(call for call in calls[:-1] if call.agent in tools), replace(calls[-1], input="")]
        try:
            chain = write_chain(question, kept, tools)
        except ValueError as error:
            raise StepError(f"run {row['id']}: {error}") from error
        rows.append(row | {"completion": [{"role": "assistant", "content": chain}]})
        count += len(calls)
    if not rows:
        raise StepError("distil: there are no runs")
    write_rows(context.output("chains"), "chat", rows)
    return {"chains": len(rows), "calls": count / len(rows)}


def cut_chains(context: Any, *, tools: Tools) -> dict[str, float]:
    """Write the parts of the input `chains` that a model writes itself, as the output `lessons`.

    The prompt of a part is the question and the chain before it, as the beginning of the answer: `sft` learns neither
    that nor observations. Metric: `lessons`. Raise StepError for a completion that is not a chain.
    """
    lessons: list[Row] = []
    for row in read_rows(context.input("chains"), "chat"):
        try:
            parts = split_chain(str(row["completion"][0]["content"]), tools)
        except ValueError as error:
            raise StepError(f"chain {row['id']}: {error}") from error
        for number, (before, part) in enumerate(parts):
            begun = [{"role": "assistant", "content": before}] if before else []
            lesson = {"prompt": [*row["prompt"], *begun], "completion": [{"role": "assistant", "content": part}]}
            lessons.append(row | {"id": f"{row['id']}.{number}"} | lesson)
    write_rows(context.output("lessons"), "chat", lessons)
    return {"lessons": len(lessons)}
