"""Rows of every format as posttrain's own rows; what does not fit raises BadRow with the reason."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from learning.data.messages import JSON_COLUMNS, PLAIN
from learning.data.rows import SCHEMAS, Row
from learning.data.sources.columns import Values, list_columns
from learning.data.sources.conversations import Message, read_messages, refuse_media, split_last_turn
from learning.data.sources.preferences import SIDES, convert_label, convert_preference, convert_scored
from learning.data.sources.records import BadRow
from learning.data.sources.steps import SHAPES, check_labels, convert_steps
from learning.data.sources.texts import add_system, read_prompt, read_side, read_text
from schemas.row_formats import EMITS, Emit, Format

WRITTEN: dict[Emit, tuple[str, ...]] = {
    "chat": ("completion",),
    "preference_pairs": SIDES,
    "step_labels": ("steps", "labels"),
    "prompts": (),
}
"""Columns of an artifact type that a model or a person wrote for a prompt."""
SCORES = tuple(f"score_{side}" for side in SIDES)
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""The character NUL as JSON writes it; an even number of backslashes before it makes it a text about NUL."""
COMMON = ("id", "answer", "family", *JSON_COLUMNS)
"""Columns that rows of every format may have."""


@dataclass(frozen=True)
class FormatReader:
    """How rows of a format are recognised and converted."""

    needs: tuple[str, ...]
    """Fields that every row has."""
    takes: tuple[str, ...]
    """Fields that are read if a row has them."""
    convert: Callable[[Values], Row]


def convert_row(reader: FormatReader, fields: Values, place: str, emit: Emit) -> Row:
    """Return the row of an artifact type from the fields of a format; `place` is the id of a row without one.

    Columns that the format does not read become `metadata`, beside what its own `metadata` has. Raise BadRow.
    """
    refuse_media(fields)
    if missing := [name for name in reader.needs if fields.get(name) is None]:
        raise BadRow(f"no `{missing[0]}`; its columns: {list_columns(fields)}")
    made = reader.convert(fields)
    known = {*reader.needs, *reader.takes, *COMMON, "metadata"}
    rest = {name: value for name, value in fields.items() if name not in known and value is not None}
    metadata = fields.get("metadata")
    rest |= made.pop("notes", {})
    if rest or not isinstance(metadata, str):
        metadata = json.dumps(_read_metadata(metadata) | rest, default=str)
    row: Row = {"id": _read_id(fields, place), "answer": _read_scalar(fields, "answer"), "metadata": metadata}
    row["family"] = _read_scalar(fields, "family")
    if reader is READERS["rows"] and fields.get("source") is not None:
        row["source"] = str(fields["source"])
    for name in JSON_COLUMNS:
        if fields.get(name) not in (None, [], {}, ""):
            row[name] = _check_json(fields[name], name)
    row |= made
    if lacking := next((name for name in WRITTEN[emit] if name not in row), None):
        raise BadRow(f"no `{lacking}`")
    _refuse_broken_text(row)
    return row


def _read_metadata(value: Any) -> dict[str, Any]:
    """Return the names and values of metadata, an object or its JSON text; anything else is one value, `metadata`."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        read = value
    if isinstance(read, dict):
        return read
    return {} if read is None else {"metadata": read}


def _read_id(fields: Values, place: str) -> str:
    own = fields.get("id")
    if own is None or own == "":
        return place
    if isinstance(own, bool) or not isinstance(own, str | int):
        raise BadRow(f"`id` is no text but {type(own).__name__}")
    return str(own)


def _read_scalar(fields: Values, name: str) -> str | None:
    value = fields.get(name)
    return value if value is None or isinstance(value, str) else json.dumps(value, default=str)


def _check_json(value: Any, name: str) -> Any:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise BadRow(f"`{name}` is no JSON: {error}") from error
    if not isinstance(parsed, list if name == "tools" else dict):
        raise BadRow(f"`{name}` is no {'list' if name == 'tools' else 'object'}")
    if name == "tools" and not all(isinstance(tool, dict) for tool in parsed):
        number = next(i for i, tool in enumerate(parsed, 1) if not isinstance(tool, dict))
        raise BadRow(f"`tools`, tool {number} is no object but {type(parsed[number - 1]).__name__}")
    return value


def _refuse_broken_text(row: Row) -> None:
    """Raise BadRow for half a character, and for NUL, of which damaged files and writes that were cut off consist."""
    written = json.dumps(row, ensure_ascii=False, default=str)
    try:
        written.encode()
    except UnicodeEncodeError as error:
        raise BadRow(f"text with half a character (U+{ord(error.object[error.start]):04X})") from error
    if "\\u0000" in written and NUL.search(written):
        raise BadRow("text with the character NUL (U+0000), as damaged files have")


def _convert_messages(fields: Values) -> Row:
    field = "messages" if fields.get("messages") is not None else "conversations"
    if fields.get(field) is None:
        raise BadRow(f"no `messages`; its columns: {list_columns(fields)}")
    messages = add_system(read_messages(fields[field], field), fields)
    prompt, completion = split_last_turn(messages, field)
    return {"prompt": prompt, "completion": completion}


def _convert_alpaca(fields: Values) -> Row:
    instruction, given = read_text(fields, "instruction"), read_text(fields, "input", optional=True)
    question: Message = {"role": "user", "content": instruction}
    if given.strip():  # templates may write both in their own way, as `chat_template: alpaca` does
        question = {"role": "user", "content": f"{instruction}\n\n{given}", "instruction": instruction, "input": given}
    prompt = [*_read_history(fields), question]
    answer = [{"role": "assistant", "content": read_text(fields, "output")}]
    return {"prompt": add_system(prompt, fields), "completion": answer}


def _read_history(fields: Values) -> list[Message]:
    """Return earlier turns, which are pairs of texts."""
    turns = fields.get("history")
    if turns in (None, []):
        return []
    if not isinstance(turns, list):
        raise BadRow("`history` is no list of pairs of texts")
    messages: list[Message] = []
    for turn in turns:
        if not isinstance(turn, list) or len(turn) != 2 or not all(isinstance(t, str) and t.strip() for t in turn):
            raise BadRow("`history` is no list of pairs of texts")
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    return messages


def _convert_prompt_completion(fields: Values) -> Row:
    prompt, completion = read_prompt(fields), read_side(fields, "completion")
    return {"prompt": prompt, "completion": completion}


def _convert_text(fields: Values) -> Row:
    return {"prompt": [], "completion": [{"role": PLAIN, "content": read_text(fields, "text")}]}


def _convert_prompts(fields: Values) -> Row:
    return {"prompt": read_prompt(fields)}


def _convert_rows(fields: Values) -> Row:
    written = ("prompt", "completion", *SIDES, "steps")
    made: Row = {name: _check_own(fields[name], name) for name in written if fields.get(name) is not None}
    if fields.get("labels") is not None:
        made["labels"] = check_labels(fields["labels"], made.get("steps", []))
    return made | {"margin": fields.get("margin")}


def _check_own(messages: Any, name: str) -> list[Message]:
    are_messages = isinstance(messages, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages
    )
    if not are_messages:
        raise BadRow(f"`{name}` is no list of messages")
    return messages


READERS: dict[Format, FormatReader] = {
    "rows": FormatReader(
        ("id", "prompt"), ("completion", *SIDES, "margin", "steps", "labels", "source"), _convert_rows
    ),
    "preference": FormatReader(SIDES, ("prompt", "system", "margin", *SCORES), convert_preference),
    "scored": FormatReader(("completions",), ("prompt", "instruction", "system"), convert_scored),
    "ratings": FormatReader(("completions",), ("prompt", "system"), convert_scored),
    "labels": FormatReader(("prompt", "completion", "label"), ("system",), convert_label),
    "steps": FormatReader((), ("prompt", "completions", "labels", "input", "label", "system"), convert_steps),
    "messages": FormatReader((), ("messages", "conversations", "system"), _convert_messages),
    "alpaca": FormatReader(("instruction", "output"), ("input", "system", "history"), _convert_alpaca),
    "prompt_completion": FormatReader(("prompt", "completion"), ("system",), _convert_prompt_completion),
    "text": FormatReader(("text",), (), _convert_text),
    "prompts": FormatReader(("prompt",), ("system",), _convert_prompts),
}
"""Format to reader, in the order in which formats are tried."""


def detect_format(columns: set[str], emit: Emit) -> Format | None:
    """Return the first format whose fields are among the columns and whose rows can become the artifact type."""
    own = {name for name in SCHEMAS[emit].names if name not in JSON_COLUMNS}
    for name in READERS:
        if emit not in EMITS[name]:
            continue
        if name == "ratings":
            fits = False  # it is what a recipe names by the weights of its ratings
        elif name == "rows":
            fits = own <= columns
        elif name == "messages":
            fits = bool(columns & {"messages", "conversations"})
        elif name == "steps":
            fits = any(shape <= columns for shape in SHAPES)
        else:
            fits = set(READERS[name].needs) <= columns
        if fits:
            return name
    return None
