"""Tool calls in the text of a turn, as chat templates of Qwen, Hermes and others write them."""

import json
from dataclasses import dataclass
from typing import Any

from schemas.base import JsonObject

BEGIN, END = "<tool_call>", "</tool_call>"
MOST = 32
"""Limit of calls in a turn."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: JsonObject


def parse_tool_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Return the text before the first call, and the calls; all of the text and no call if one cannot be read.

    A call is `<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>`. (As vLLM's parser for Hermes.)
    """
    content, *parts = text.split(BEGIN)
    if not parts or len(parts) > MOST:
        return text, []
    calls = [_read_call(part.partition(END)[0]) for part in parts]
    known = [call for call in calls if call is not None]
    return (content.strip(), known) if len(known) == len(calls) else (text, [])


def _read_call(text: str) -> ToolCall | None:
    try:
        call: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    return ToolCall(call["name"], arguments) if isinstance(arguments, dict) else None
