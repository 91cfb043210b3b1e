"""Messages pass through tables of rows with all that templates read."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data.chat import encode_prompt
from learning.data.examples import encode_row, read_examples
from learning.data.rows import SCHEMAS, read_rows, scan_rows, write_rows
from learning.data.stored_rows import iterate_rows, store_rows
from tests.learning.data.template_families import make_tokenizer

CALLS = [
    {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 2}}},
    {"id": "call00002", "type": "function", "function": {"name": "say", "arguments": {"text": "ä", "loud": None}}},
]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
PROMPT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS, "train": True},
    {"role": "tool", "content": "4", "name": "add", "tool_call_id": "call00001"},
]
REST = {"answer": "4", "family": "sums", "metadata": "{}"}
ROW = {
    "id": "a",
    "prompt": PROMPT,
    "completion": [{"role": "assistant", "content": "It is 4.", "reasoning_content": "2+2"}],
    **REST,
    "tools": [TOOL],
    "chat_template_kwargs": {"enable_thinking": False},
}
PLAIN = {
    "id": "b",
    "prompt": [{"role": "user", "content": "1"}],
    "completion": [{"role": "assistant", "content": "2"}],
    **REST,
}


def test_rows_come_back_as_they_were_written(tmp_path):
    write_rows(tmp_path, "chat", [ROW, PLAIN])
    opened = ROW | {name: json.dumps(ROW[name]) for name in ("tools", "chat_template_kwargs")}
    assert read_rows(tmp_path, "chat") == [opened, PLAIN]
    stored = store_rows(
        tmp_path / "stored",
        SCHEMAS["chat"],
        2,
        lambda start: iterate_rows(scan_rows(tmp_path, "chat", start=start)),
        lambda row: [row],
        lambda row: row,
    )
    assert list(stored) == [stored[0], stored[1]] == [opened, PLAIN]


def test_tables_of_others_keep_their_tool_calls_and_need_no_column_for_tools(tmp_path):
    """Hugging Face writes tool calls as structs: a key that one call has, all have, mostly without a value."""
    messages = [{"role": "assistant", "content": "4"}]
    calls = [
        {"function": {"name": "add", "arguments": {"a": 2}}},
        {"function": {"name": "say", "arguments": {"t": "x"}}},
    ]
    prompts = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": calls}]]
    table = pa.table({"id": ["a"], "prompt": prompts, "completion": [messages], **{k: [v] for k, v in REST.items()}})
    assert "tool_calls" in str(table.schema.field("prompt").type)
    pq.write_table(table, tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path, "chat")
    assert row["prompt"] == prompts[0]
    assert row["prompt"][1]["tool_calls"] == calls
    assert "tools" not in row


def test_tools_of_a_row_may_be_structs(tmp_path):
    columns = {name: [PLAIN[name]] for name in PLAIN} | {"tools": [[TOOL | {"strict": None}]]}
    columns["tools"][0][0]["function"]["parameters"] = {"type": "object", "properties": {"a": {"type": "number"}}}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    (row,) = read_rows(tmp_path, "chat")
    properties = {"a": {"type": "number"}}
    function = {"name": "add", "parameters": {"type": "object", "properties": properties}}
    assert json.loads(row["tools"]) == [{"type": "function", "function": function}]


@pytest.mark.parametrize("name", ["qwen 3", "mistral", "harmony", "deepseek r1"])
def test_token_ids_are_the_same_after_a_table(tmp_path, name):
    tokenizer = make_tokenizer(name)
    first = PROMPT[2] | {"content": "", "tool_calls": CALLS[:1]}
    row = ROW | {
        "prompt": [*PROMPT[:2], first, PROMPT[3]],
        "completion": [{"role": "assistant", "content": "It is 4."}],
    }
    write_rows(tmp_path, "chat", [row])
    (kept,) = read_examples(tokenizer, tmp_path, 1024, tmp_path / "x", "marked").kept
    assert kept == encode_row(tokenizer, row, "marked")
    learned = tokenizer.decode([t for t, bit in zip(kept.ids, kept.learned, strict=True) if bit])
    assert "add" in learned
    assert "It is 4." not in learned


def test_arguments_as_json_text_are_the_object(tmp_path):
    tokenizer = make_tokenizer("llama 3")
    function = CALLS[0]["function"]
    texts = [CALLS[0] | {"function": function | {"arguments": json.dumps(function["arguments"])}}]
    prompts = [
        [*PROMPT[:2], {"role": "assistant", "content": None, "tool_calls": c}, PROMPT[3]] for c in (CALLS[:1], texts)
    ]
    assert encode_prompt(tokenizer, prompts[0]) == encode_prompt(tokenizer, prompts[1])


def test_rows_kept_on_disk_have_the_same_losses(tmp_path, monkeypatch):
    tokenizer = make_tokenizer("qwen 3")
    prompts = [[*PROMPT[:2], {"role": "assistant", "content": "4"}, *PROMPT[1:2]], PROMPT[:2]]
    rows = [PLAIN | {"id": str(n), "prompt": prompt} for n, prompt in enumerate(prompts)]
    write_rows(tmp_path, "chat", rows)
    in_memory = list(read_examples(tokenizer, tmp_path, 1024, tmp_path / "x", "all").kept)
    monkeypatch.setattr("learning.data.examples.fits_in_memory", lambda folder: False)
    on_disk = list(read_examples(tokenizer, tmp_path, 1024, tmp_path / "x", "all").kept)
    assert on_disk == in_memory == [encode_row(tokenizer, row, "all") for row in rows]
    assert [len(example.skipped) for example in on_disk] == [4, 2]
    for example in on_disk:
        assert example.num_learned == sum(example.learned)
