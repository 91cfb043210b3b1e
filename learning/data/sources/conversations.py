"""Conversations as OpenAI's API and ShareGPT write them, as messages with the keys that chat templates read."""

import json
from typing import Any

from learning.data.sources.records import BadRow

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "model": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    "function_call": "assistant",
}
BLANK = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace()) + "\u200b\u200c\u200d\u2060\ufeff"
"""White space, and characters without width: a message of these alone is empty."""
IMAGE_KEYS = ("images", "image", "videos", "audio", "audios")
Message = dict[str, Any]


def read_messages(value: Any, field: str = "messages") -> list[Message]:
    """Return a list of messages from either notation. Raise BadRow, naming the message, for anything else."""
    if isinstance(value, str):
        value = _parse_json(value, field)
    if not isinstance(value, list) or not value:
        raise BadRow(f"`{field}` is {'empty' if value == [] else 'no list of messages'}")
    messages = [_read_message(message, f"{field}, message {i}") for i, message in enumerate(value, 1)]
    _check_order(messages, field)
    return messages


def split_last_turn(messages: list[Message], field: str = "messages") -> tuple[list[Message], list[Message]]:
    """Return the messages before the last one and the last one, the assistant's. Raise BadRow if it is not."""
    if messages[-1]["role"] != "assistant":
        raise BadRow(f"`{field}` ends with a message of {messages[-1]['role']}; the last must be the assistant's")
    if len(messages) == 1:
        raise BadRow(f"`{field}` has no message before the assistant's")
    return messages[:-1], messages[-1:]


def _parse_json(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"`{field}` is text and no list of messages: {error}") from error


def _read_message(message: Any, where: str) -> Message:
    if not isinstance(message, dict):
        raise BadRow(f"{where} is no object but {type(message).__name__}")
    if "role" not in message and "from" in message:
        message = _read_sharegpt(message, where)
    role = message.get("role")
    if role is None:
        raise BadRow(f"{where} has no role; its keys: {', '.join(map(str, message))}")
    if role not in ROLES:
        raise BadRow(f"{where} has role {role!r}; roles are {', '.join(sorted(ROLES))}")
    made = {"role": role, **{key: value for key, value in message.items() if key != "role" and value is not None}}
    content = _read_content(message.get("content"), where)
    calls = _read_calls(message.get("tool_calls"), where)
    if "tool_calls" in made and not calls:
        del made["tool_calls"]
    if calls:
        made["tool_calls"] = calls
    if content is None and not calls:
        raise BadRow(f"{where} ({role}) has no content")
    if role in ("user", "assistant") and not calls and not str(content).strip(BLANK):
        raise BadRow(f"{where} ({role}) is empty")
    return {**made, "content": content}


def _read_sharegpt(message: Message, where: str) -> Message:
    role, text = message["from"], message.get("value")
    if role not in SHAREGPT_ROLES:
        raise BadRow(f"{where} is from {role!r}; it can be from {', '.join(SHAREGPT_ROLES)}")
    rest = {key: value for key, value in message.items() if key not in ("from", "value")}
    if role != "function_call":
        return {"role": SHAREGPT_ROLES[role], "content": text, **rest}
    call = _parse_json(str(text), f"{where}, its call")
    calls = call if isinstance(call, list) else [call]
    return {"role": "assistant", "content": None, "tool_calls": calls, **rest}


def _read_content(content: Any, where: str) -> str | None:
    """Return content as text; parts of type text are joined, whose text is `text`, or `value` (LLaMA-Factory v1)."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadRow(f"{where}: content is no text but {type(content).__name__}")
    kinds = [part.get("type") for part in content]
    if other := next((kind for kind in kinds if kind != "text"), None):
        raise BadRow(f"{where}: content of type {other!r}; images and other media are not supported, only text")
    texts = [part.get("text", part.get("value")) for part in content]
    if not all(isinstance(text, str) for text in texts):
        raise BadRow(f"{where}: a part of its content has no text")
    return "".join(texts)


def _read_calls(calls: Any, where: str) -> list[Message]:
    if calls is None or calls == []:
        return []
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise BadRow(f"{where}: tool_calls is no list of calls")
    for call in calls:
        function = call.get("function", call)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRow(f"{where}: a tool call has no name")
        if isinstance(arguments := function.get("arguments"), str) and arguments.strip():
            _parse_arguments(arguments, where)
    return calls


def _parse_arguments(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{where}: the arguments of a tool call are no JSON: {error}") from error


def _check_order(messages: list[Message], field: str) -> None:
    roles = [message["role"] for message in messages]
    for i, role in enumerate(roles[1:], 2):
        if role in ("system", "developer"):
            raise BadRow(f"{field}, message {i}: a {role} message must be the first")
        if role == "tool" and not (roles[i - 2] == "tool" or "tool_calls" in messages[i - 2]):
            raise BadRow(f"{field}, message {i}: a tool answers, but the message before it calls none")
    spoken = [role for role in roles if role not in ("system", "developer")]
    if spoken[:1] != ["user"]:
        first = spoken[0] if spoken else "no one"
        raise BadRow(
            f"`{field}` begins with a message of {first}; the first after the system message must be the user's"
        )


def refuse_media(values: dict[str, Any]) -> None:
    """Raise BadRow for a row with images or other media beside its text."""
    for key in IMAGE_KEYS:
        if values.get(key):
            raise BadRow(f"column `{key}`: images and other media are not supported, only text")
