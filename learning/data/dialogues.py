"""Dialogues as rows of chat: the turns of the agent and of its partner, seen from either side, and what they earned."""

import math
from collections.abc import Sequence
from itertools import groupby

from learning.data.rendering import Messages
from learning.data.rows import Row, read_metadata
from schemas.errors import StepError


def list_messages(row: Row) -> list[Row]:
    """Return the role and text of every message of a dialogue. Raise StepError for one that is not text alone."""
    messages = [*row["prompt"], *row["completion"]]
    if any(not isinstance(message.get("content"), str) or message.get("tool_calls") for message in messages):
        raise StepError(f"row {row['id']}: a message is no text, or calls a tool; give conversations of texts")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def find_agent_turns(messages: Messages) -> list[int]:
    """Return the places of the agent's turns."""
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def exchange_roles(messages: Messages) -> list[Row]:
    """Return a dialogue as the partner sees it, whose own turns are then those of the assistant.

    What stands before the agent's first turn is a part of the first message, and messages of one speaker that follow
    each other are one, so that roles alternate.
    """
    first = next(iter(find_agent_turns(messages)), len(messages))
    opening = "\n".join(str(message["content"]) for message in messages[: first + 1])
    later = [
        {"role": "user" if message["role"] == "assistant" else "assistant", "content": str(message["content"])}
        for message in messages[first + 1 :]
    ]
    grouped = groupby([{"role": "user", "content": opening}, *later], key=lambda message: message["role"])
    return [{"role": role, "content": "\n".join(one["content"] for one in said)} for role, said in grouped]


def number_turns(messages: Messages, agent: str, partner: str) -> str:
    """Return a dialogue as lines: `agent 1: …` for turns of the agent, with their number, `partner: …` for others."""
    lines, count = list[str](), 0
    for message in messages:
        count += message["role"] == "assistant"
        who = f"{agent} {count}" if message["role"] == "assistant" else partner
        lines.append(f"{who}: {message['content']}")
    return "\n".join(lines)


def read_return(row: Row) -> float:
    """Return the sum of what a dialogue earned, by its metadata. Raise StepError where they do not say."""
    given = read_metadata(row).get("rewards")
    rewards: Sequence[object] = given if isinstance(given, list) else [given]
    numbers = [one for one in rewards if isinstance(one, int | float) and math.isfinite(one)]
    if not rewards or len(numbers) < len(rewards):
        raise StepError(f'row {row["id"]}: its metadata have no `rewards` that are numbers, as {{"rewards": [0, 1]}}')
    return float(sum(numbers))
