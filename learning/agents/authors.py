"""Slot author: a meta-agent that writes tools, prompts and settings of an agent for a task.

An author returns a draft, plain values as in `schemas.agent.Draft`: `tools` with code and tests, `toolkit` (names of
the given tools that the agent keeps; none: all), `context` (what the model is shown) and `description`. All of it is
checked before use: a draft against the schema, a tool by its tests in the sandbox. The next call of the author receives
what was rejected, with the reasons, in `refused`. (Youtu-Agent, Shi et al. 2025, arXiv:2512.24615: the modes Workflow
and Meta-Agent of automated generation.)
"""

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field

from learning.agents.templates import find_needed
from learning.api.spending import SpendingAccount
from learning.data.questions import fill_template
from learning.data.rows import Row
from schemas.base import JsonObject
from schemas.endpoint import Endpoint

Rate = Annotated[float, Field(ge=0, le=1)]
ORDER = """Write an agent for this task: {task}
Tools that there are: {toolkit}
Reply with one JSON object: {"description": text, "tools": [{"name": small letters, "description": text,
"code": Python that defines a function of that name from text to text, "tests": [{"query": text, "answer": text}]}],
"toolkit": names of the tools there are that the agent keeps, "context": {"system": text of the system message}}
Refused so far: {refused}"""


def templates(
    task: str,
    toolkit: Mapping[str, str],
    refused: list[Row],
    attempt: int,
    rng: np.random.Generator,
    *,
    system: str = "",
    error_rate: Rate = 0.0,
) -> JsonObject:
    """Write tools from templates (`learning.agents.templates`) whose keywords the task has, wrong at `error_rate`.

    `system` becomes the system message, with {task} and {tools} (a line for every tool) filled in. Further attempts
    write only the refused tools.
    """
    again = {entry["name"] for entry in refused}
    needed = find_needed(task)
    written = [template for template in needed if attempt == 0 or template.name in again]
    tools = [
        {
            "name": template.name,
            "description": template.description,
            "code": template.code(careless=bool(rng.random() < error_rate)),
            "tests": [{"query": query, "answer": answer} for query, answer in template.tests],
        }
        for template in written
        if template.name not in toolkit
    ]
    lines = [f"{name}: {summary}" for name, summary in {**toolkit, **{t.name: t.description for t in needed}}.items()]
    text = fill_template(system, {"task": task, "tools": "\n".join(lines)})
    return {"description": task, "tools": tools, "context": {"system": text}}


def endpoint(
    task: str,
    toolkit: Mapping[str, str],
    refused: list[Row],
    attempt: int,
    account: SpendingAccount,
    *,
    endpoint: Endpoint,
    order: str = ORDER,
    temperature: Annotated[float, Field(ge=0)] = 0.7,
    max_completion_length: Annotated[int, Field(ge=1)] = 2048,
) -> JsonObject:
    """Ask a model behind an endpoint for a draft, by `order` with {task}, {toolkit} and {refused} filled in."""
    from learning.agents.asking import ask_object  # the client takes a third of a second to import

    tools = "; ".join(f"{name}: {description}" for name, description in toolkit.items()) or "none"
    why = "; ".join(f"{entry['name']}: {', '.join(entry['reasons'])}" for entry in refused) or "nothing"
    question = fill_template(order, {"task": task, "toolkit": tools, "refused": why})
    return ask_object(endpoint, account, question, attempt, temperature, max_completion_length)
