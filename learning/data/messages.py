"""Messages in Arrow tables: role and content are columns, and what else a message has is JSON text beside them.

Tool calls have arguments of their own for every tool, which no fixed Arrow schema holds without losing any.
"""

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("more", pa.string())]))
JSON_COLUMNS = ("tools", "chat_template_kwargs")
PLAIN = "text"
"""Role of a message that is plain text: it is encoded without a chat template, and all of it is learned."""
Values = dict[str, Any]


def unpack_rows(batch: pa.RecordBatch | pa.Table) -> list[Values]:
    """Return the rows of a table as they were given to `make_batch`; optional columns without a value are left out."""
    rows = batch.to_pylist()
    conversations = [field.name for field in batch.schema if field.type == MESSAGES]
    optional = [field.name for field in batch.schema if is_optional(field)]
    for row in rows:
        for name in conversations:
            for message in row[name] or ():
                if (more := message.pop("more", None)) is not None:
                    message.update(json.loads(more))
        for name in optional:
            if row[name] is None:
                del row[name]
    return rows


def make_optional_field(name: str) -> pa.Field:
    """Return a column of JSON text that a table may lack."""
    return pa.field(name, pa.string(), metadata={"optional": "json"})


def is_optional(field: pa.Field) -> bool:
    """Return whether a table may lack a column."""
    return b"optional" in (field.metadata or {})


def make_batch(rows: Iterable[Values], schema: pa.Schema) -> pa.RecordBatch:
    """Return rows as a record batch; keys of messages beyond role and content become JSON text."""
    conversations = [field.name for field in schema if field.type == MESSAGES]
    optional = [field.name for field in schema if is_optional(field)]
    packed = [
        row
        | {name: _pack_messages(row[name]) for name in conversations if row.get(name) is not None}
        | {name: _write_json(row[name]) for name in optional if row.get(name) is not None}
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(packed, schema=schema)


def has_more_keys(kind: pa.DataType) -> bool:
    """Return whether a type is a list of messages with keys that `MESSAGES` does not have."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    fields = [kind.value_type.field(i) for i in range(kind.value_type.num_fields)]
    names = {field.name for field in fields}
    parts = any(field.name == "content" and pa.types.is_nested(field.type) for field in fields)
    return {"role", "content"} <= names and (parts or not names <= {"role", "content", "more"})


def convert_messages(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return messages of any struct type as `MESSAGES`; keys without a value are left out, also within tool calls."""
    lists = [None if messages is None else _pack_messages(drop_nulls(messages)) for messages in column.to_pylist()]
    return pa.array(lists, MESSAGES)


def convert_json(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column of lists or structs as JSON text."""
    values = [None if value is None else _write_json(drop_nulls(value)) for value in column.to_pylist()]
    return pa.array(values, pa.string())


def _write_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pack_messages(messages: Iterable[Values]) -> list[Values]:
    return [_pack_message(message) for message in messages]


def _pack_message(message: Values) -> Values:
    more = {key: value for key, value in message.items() if key not in ("role", "content")}
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        more["content"] = content
        content = None
    packed = {"role": message.get("role"), "content": content}
    return packed | {"more": json.dumps(more)} if more else packed


def drop_nulls(value: Any) -> Any:
    """Return a value without the keys that a struct type adds because other rows have them."""
    if isinstance(value, dict):
        kept = {key: drop_nulls(item) for key, item in value.items() if item is not None or key == "content"}
        if isinstance(more := kept.get("more"), str):
            kept |= json.loads(kept.pop("more")) if more else {}
        return kept
    return [drop_nulls(item) for item in value] if isinstance(value, list) else value
