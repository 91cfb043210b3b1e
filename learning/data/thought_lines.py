"""Turns and traces of lines `Thought: …`, `Action: …` and `Answer: …`, in three styles (ReAct, Yao et al. 2022)."""

import re
from collections.abc import Sequence
from typing import Literal

from learning.data.rows import Row

Style = Literal["react", "act_only", "reason_only"]
KINDS: dict[str, tuple[str, ...]] = {
    "react": ("Thought", "Action", "Answer"),
    "act_only": ("Action", "Answer"),
    "reason_only": ("Thought", "Answer"),
}
"""Lines that a turn of each style has."""
LINE = re.compile(r"^[ \t]*(Thought|Action|Answer|Observation):[ \t]*", re.MULTILINE)
"""The beginning of a line; a line without one continues the line before it."""


def split_lines(turn: str) -> list[tuple[str, str]]:
    """Return the lines of a turn as pairs of kind and text; text before the first kind has the kind ``."""
    first, *rest = LINE.split(turn)
    lines = [(kind, text.strip()) for kind, text in zip(rest[::2], rest[1::2], strict=True)]
    return [("", first.strip()), *lines] if first.strip() else lines


def retell_turn(turn: str, style: Style) -> str:
    """Return the lines of a turn that a style has; empty if there are none."""
    return "\n".join(f"{kind}: {text}" for kind, text in split_lines(turn) if kind in KINDS[style])


def retell_trace(messages: Sequence[Row], style: Style) -> list[Row]:
    """Return a conversation in a style: turns without a line of it are left out, with the answers to them.

    Without actions there is nothing to observe: the turns of `reason_only` are joined into one, which is empty where
    the conversation gives no answer.
    """
    turns: list[Row] = []
    for message in messages:
        if message["role"] != "assistant":
            turns += [message] if style != "reason_only" and turns and turns[-1]["role"] == "assistant" else []
        elif text := retell_turn(str(message["content"]), style):
            turns.append({"role": "assistant", "content": text})
    if style != "reason_only":
        return turns
    text = "\n".join(str(turn["content"]) for turn in turns)
    return [{"role": "assistant", "content": text}] if "Answer" in dict(split_lines(text)) else []


def write_demonstration(question: str, messages: Sequence[Row], style: Style) -> str:
    """Return a worked example as text: the question, then thoughts, actions, observations and the answer."""
    lines = [
        str(message["content"]) if message["role"] == "assistant" else f"Observation: {message['content']}"
        for message in retell_trace(messages, style)
    ]
    return "\n".join([f"Question: {question}", *lines])
