import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import StepError
from schemas.stages.data import Data
from tests.tasks.data_stages import convert, line

GOOD = line("2+2?", "4")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"


def spoken(row):
    return [(m["role"], m["content"]) for m in row["prompt"] + row.get("completion", [])]


EXPECTED = [("user", "2+2?"), ("assistant", "4")]
SAME = {
    "jsonl": ("a.jsonl", GOOD + "\n", {}),
    "byte order mark": ("a.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), {}),
    "json": ("a.json", f"[ {GOOD} ]", {}),
    "lines in .json": ("a.json", GOOD, {}),
    "one object over several lines": ("a.json", json.dumps(json.loads(GOOD), indent=1), {}),
    "gzip": ("a.jsonl.gz", gzip.compress(GOOD.encode()), {}),
    "sharegpt": (
        "a.jsonl",
        json.dumps({"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}),
        {},
    ),
    "parts": (
        "a.jsonl",
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "2+2?"}]},
                    {"role": "assistant", "content": "4"},
                ]
            }
        ),
        {},
    ),
    "parts of LLaMA-Factory v1": (
        "a.jsonl",
        json.dumps(
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "value": "2+"}, {"type": "text", "value": "2?"}]},
                    {"role": "assistant", "content": [{"type": "text", "value": "4"}], "loss_weight": 1.0},
                ]
            }
        ),
        {},
    ),
    "alpaca": ("a.csv", "instruction,input,output\n2+2?,,4\n", {}),
    "prompt and completion": ("a.tsv", "prompt\tcompletion\n2+2?\t4\n", {}),
    "conversational": (
        "a.jsonl",
        json.dumps(
            {"prompt": [{"role": "user", "content": "2+2?"}], "completion": [{"role": "assistant", "content": "4"}]}
        ),
        {},
    ),
    "renamed": ("a.csv", "q,a\n2+2?,4\n", {"columns": {"prompt": "q", "completion": "a"}}),
    "template": ("a.csv", "x,y,a\n2,2,4\n", {"columns": {"prompt": "{x}+{y}?", "completion": "{a}"}}),
    "named": ("a.jsonl", json.dumps({"prompt": "2+2?", "completion": "4"}), {"format": "prompt_completion"}),
}


@pytest.mark.parametrize(("name", "content", "source"), SAME.values(), ids=SAME)
def test_every_format_gives_the_same_conversation(tmp_path, name, content, source):
    rows, result, _ = convert(tmp_path, {name: content}, **source)
    assert [spoken(row) for row in rows] == [EXPECTED]
    assert result.metrics == {"rows": 1, "kept": 1, "dropped": 0, "mixed": 1}
    assert rows[0]["id"] == f"{name}:1"


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "arrow stream"])
def test_columnar_files_are_read_without_the_keys_that_arrow_adds(tmp_path, suffix):
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    other = {"function": {"name": "sub", "arguments": {"b": 1}}}
    rows = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [one]}]}
        for one in (call, other)
    ]
    table, path = pa.Table.from_pylist(rows), tmp_path / "in" / f"a.{suffix.partition(' ')[0]}"
    path.parent.mkdir()
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        make = pa.ipc.new_stream if "stream" in suffix else pa.ipc.new_file
        with make(str(path), table.schema) as writer:
            writer.write_table(table)
    made, _, _ = convert(tmp_path, {})
    assert [row["completion"][0]["tool_calls"] for row in made] == [[call], [other]]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"metadata": {"rewards": [1], "x": 2}, "x": 3}, {"rewards": [1], "x": 3}),
        ({"metadata": '{"rewards": [1]}', "x": 3}, {"rewards": [1], "x": 3}),
        ({"metadata": '{"rewards": [1]}'}, {"rewards": [1]}),
        ({"metadata": "a note", "x": 3}, {"metadata": "a note", "x": 3}),
        ({"metadata": [1, 2]}, {"metadata": [1, 2]}),
        ({"x": 3}, {"x": 3}),
    ],
)
def test_metadata_of_a_row_are_kept_beside_its_other_columns(tmp_path, given, kept):
    """They are not nested, so that functions find the same names after rows went through two stages."""
    file = {"a.jsonl": json.dumps({"prompt": "p", "completion": "c"} | given)}
    (row,) = convert(tmp_path, file, emit="chat")[0]
    assert json.loads(row["metadata"]) == kept


def test_text_is_learned_without_a_template_and_other_columns_are_metadata(tmp_path):
    rows, _, _ = convert(tmp_path, {"a.txt": "To be,\nor not."}, format="text")
    assert rows[0]["prompt"] == []
    assert rows[0]["completion"] == [{"role": "text", "content": "To be,\nor not."}]
    row = {"id": 7, "question": "2+2?", "answer": 4, "level": 3}
    rows, _, _ = convert(tmp_path / "two", {"a.jsonl": json.dumps(row)}, emit="prompts", columns={"prompt": "question"})
    assert (rows[0]["id"], rows[0]["answer"], json.loads(rows[0]["metadata"])) == ("7", "4", {"level": 3})


def test_tools_thinking_and_system_columns_are_kept(tmp_path):
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "4", "reasoning_content": "2+2"}]
    text = json.dumps({"messages": messages, "tools": tools, "system": "Add."})
    rows, _, _ = convert(tmp_path, {"a.jsonl": text})
    assert json.loads(rows[0]["tools"]) == tools
    assert rows[0]["prompt"][0] == {"role": "system", "content": "Add."}
    assert rows[0]["completion"][0]["reasoning_content"] == "2+2"


BAD = {
    "not UTF-8": (GOOD.encode().replace(b"4", b"\xff"), "not UTF-8: invalid start byte"),
    "cut off": (GOOD[:-3], "no JSON"),
    "a list": ("[1]", "no JSON object but list"),
    "NaN": (GOOD.replace('"4"', "NaN"), "NaN is no JSON value"),
    "nested too deeply": ("[" * 100_000, "nested too deeply"),
    "half a character": (GOOD.replace('"4"', '"\\ud800"'), r"half a character \(U\+D800\)"),
    "no messages": ('{"text": "4"}', "no `messages`; its columns: text"),
    "null": ('{"messages": null}', "no `messages`"),
    "no message": ('{"messages": []}', "`messages` is empty"),
    "another type": ('{"messages": 3}', "no list of messages"),
    "a text as message": ('{"messages": ["a"]}', "message 1 is no object but str"),
    "no role": ('{"messages": [{"content": "a"}]}', "message 1 has no role"),
    "wrong role": (GOOD.replace('"user"', '"bot"'), "message 1 has role 'bot'; roles are assistant, developer"),
    "empty turn": (line("2+2?", " "), r"message 2 \(assistant\) is empty"),
    "empty question": (line("", "4"), r"message 1 \(user\) is empty"),
    "no content": (GOOD.replace('"4"', "null"), r"message 2 \(assistant\) has no content"),
    "ends with the user": (line("2+2?", "4", "so?"), "ends with a message of user"),
    "begins with the assistant": ('{"messages": [{"role": "assistant", "content": "4"}]}', "begins with a message of"),
    "late system": (
        GOOD.replace("[{", '[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {'),
        "message 2: a system message must be the first",
    ),
    "tool without a call": (
        GOOD.replace("[{", '[{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}, {'),
        "message 2: a tool answers, but the message before it calls none",
    ),
    "image": (
        GOOD.replace('"2+2?"', '[{"type": "image_url", "image_url": "x"}]'),
        "content of type 'image_url'; images and other media are not supported",
    ),
    "column of images": (line("2+2?", "4", images=["x.png"]), "column `images`: images and other media"),
    "id of another type": (line("2+2?", "4", id=[1]), "`id` is no text but list"),
    "tools that are no JSON": (line("2+2?", "4", tools="[{"), "`tools` is no JSON"),
    "a key twice": (
        GOOD.replace('"content": "4"', '"content": "4", "content": "5"'),
        "'content' is in an object twice",
    ),
    "a number as text": (GOOD.replace('"4"', "4"), "message 2: content is no text but int"),
    "two system messages": (
        GOOD.replace("[{", '[{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, {'),
        "message 2: a system message must be the first",
    ),
    "a role in capitals": (GOOD.replace('"user"', '"User"'), "message 1 has role 'User'"),
    "a call without a name": (
        GOOD.replace('"4"', 'null, "tool_calls": [{"function": "x"}]'),
        "a tool call has no name",
    ),
    "a system prompt that is a number": (line("2+2?", "4", system=3), "`system` is no text but int"),
    "an id again": (line("3+3?", "6", id="first"), "id 'first' is that of an earlier row"),
    "NUL in a text": (line("2+2?", "4\0"), r"text with the character NUL \(U\+0000\)"),
    "NULs in place of a row": (b"\0" * 300, "no JSON"),
    "a number beyond any": (GOOD[:-1] + ', "score": 1e999}', "1e999 is too large a number"),
    "a turn without width": (line("2+2?", "\u200b\ufeff"), r"message 2 \(assistant\) is empty"),
    "a tool that is a text": (line("2+2?", "4", tools=["add"]), "`tools`, tool 1 is no object but str"),
    "arguments that are no JSON": (
        GOOD.replace('"4"', 'null, "tool_calls": [{"function": {"name": "f", "arguments": "{x"}}]'),
        "message 2: the arguments of a tool call are no JSON",
    ),
    "a mark in the middle": (b"\xef\xbb\xbf" + GOOD.encode(), "no JSON"),
    "encoded twice": (json.dumps(GOOD), "no JSON object but str"),
    "a role with a blank": (GOOD.replace('"assistant"', '"assistant "'), "has role 'assistant '"),
    "content that is a map": (GOOD.replace('"4"', '{"text": "4"}'), "content is no text but dict"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD.values(), ids=BAD)
def test_a_bad_row_is_reported_with_file_and_row_and_nothing_is_lost(tmp_path, bad, reason):
    first = line("1+1?", "2", id="first").encode()
    content = b"\n".join([first, bad if isinstance(bad, bytes) else bad.encode(), b"", GOOD.encode()])
    with pytest.raises(StepError, match=rf"b/a\.jsonl, row 2: .*{reason}"):
        convert(tmp_path / "stop", {"b/a.jsonl": content})
    rows, result, report = convert(tmp_path / "keep", {"b/a.jsonl": content}, on_bad_row="quarantine")
    assert [row["id"] for row in rows] == ["first", "b/a.jsonl:4"]
    assert (result.metrics["rows"], result.metrics["kept"], result.metrics["dropped"]) == (3, 2, 1)
    assert sum(result.details["dropped"].values()) == 1
    dropped = pq.read_table(report / "dropped.parquet").to_pylist()
    kept = [json.loads(text) for text in (report / "quarantine.jsonl").read_text().splitlines()]
    assert [(d["id"], d["row"]) for d in dropped] == [("b/a.jsonl, row 2", 1)]
    assert [(k["file"], k["row"], k["reason"]) for k in kept] == [("b/a.jsonl", 2, dropped[0]["detail"])]


def test_the_content_of_a_row_with_an_id_again_is_kept(tmp_path):
    content = "\n".join([line("1+1?", "2", id="a"), line("3+3?", "6", id="a", level=2)])
    _, result, report = convert(tmp_path, {"a.jsonl": content}, on_bad_row="quarantine")
    (kept,) = [json.loads(text) for text in (report / "quarantine.jsonl").read_text().splitlines()]
    assert result.details["dropped"] == {"duplicate id": 1}
    assert (kept["row"], kept["content"]["id"], kept["content"]["metadata"]) == (2, "a", '{"level": 2}')
    assert [m["content"] for m in kept["content"]["prompt"] + kept["content"]["completion"]] == ["3+3?", "6"]


def test_texts_about_nul_and_empty_arguments_are_no_defects(tmp_path):
    calls = [{"function": {"name": "f", "arguments": ""}}]
    spoken = [
        {"role": "user", "content": r"what is \u0000?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
    ]
    rows, _, _ = convert(tmp_path, {"a.jsonl": json.dumps({"messages": spoken})})
    assert rows[0]["prompt"][0]["content"] == r"what is \u0000?"


@pytest.mark.parametrize(("name", "content"), [("a.csv", b"text\na\nb\0\n"), ("a.txt", b"a\0\1")])
def test_nul_is_named_in_every_format(tmp_path, name, content):
    with pytest.raises(StepError, match=rf"{name}, row \d: text with the character NUL"):
        convert(tmp_path, {name: content}, format="text")


BAD_FILES = {
    "UTF-16": ({"a.jsonl": GOOD.encode("utf-16")}, "a.jsonl: encoded as UTF-16; convert it"),
    "cut-off gzip": (
        {"a.jsonl.gz": gzip.compress(GOOD.encode() * 99)[:-20]},
        r"a\.jsonl\.gz: cannot be read after row",
    ),
    "UTF-32": ({"a.jsonl": GOOD.encode("utf-32")}, "a.jsonl: encoded as UTF-32; convert it"),
    "a pointer of Git LFS": ({"a.jsonl": POINTER}, "a.jsonl: a pointer of Git LFS.*git lfs pull"),
    "a pointer in place of Parquet": ({"a.parquet": POINTER}, "a.parquet: a pointer of Git LFS"),
    "a sheet of Excel": ({"a.csv": b"PK\x03\x04" + b"\0\1" * 50}, "a.csv: a ZIP archive or a sheet of Excel"),
    "zstd by another name": (
        {"a.jsonl.gz": pa.compress(b"x" * 99, "zstd", asbytes=True)},
        "cannot be read after row 0",
    ),
    "cut-off zstd": (
        {"a.jsonl.zst": pa.compress(f"{GOOD}\n".encode() * 999, "zstd", asbytes=True)[:-9]},
        "a.jsonl.zst: cannot be read after row 0: Truncated",
    ),
    "rubbish after gzip": (
        {"a.jsonl.gz": gzip.compress(f"{GOOD}\n".encode()) + b"rubbish"},
        "a.jsonl.gz: cannot be read after row 1: Not a gzipped file",
    ),
    "one line that is a list": ({"a.jsonl": f"[{GOOD}]"}, "a.jsonl, row 1: no JSON object but list"),
    "line ends of old Macs": ({"a.jsonl": f"{GOOD}\r{GOOD}\r"}, "a.jsonl, row 1: no JSON: Extra data"),
    "comments": ({"a.json": f"[\n// first\n{GOOD}]"}, "a.json, row 1: no JSON"),
    "columns of lists": (
        {"a.json": json.dumps({"prompt": ["a"], "completion": ["b"]})},
        "a.json, row 1: prompt, message 1 is no object but str",
    ),
    "UTF-16 without a mark": ({"a.jsonl": GOOD.encode("utf-16-le")}, "a.jsonl: encoded as UTF-16; convert it"),
    "gzip by another name": ({"a.jsonl": gzip.compress(GOOD.encode())}, r"a.jsonl: compressed, .*; call it a.jsonl.gz"),
    "semicolons": ({"a.csv": "prompt;completion\na;b\n"}, "a.csv: its columns are divided by ';', not by ','"),
    "rows inside of an object": ({"a.json": f'{{"data": [{GOOD}]}}'}, r"a.json: its rows are in the list `data`"),
    "a cut-off object": ({"a.json": "{\n" + GOOD[1:-1]}, "a.json: neither a JSON list, nor JSON Lines, nor one object"),
    "comma at the end of a list": ({"a.json": f"[{GOOD},]"}, "a.json, row 2: no JSON"),
    "empty Parquet": ({"b/a.parquet": b""}, "^b/a.parquet: not a Parquet file, or cut off"),
    "header only": ({"a.csv": "prompt,completion\n"}, "a.csv: no rows"),
    "cut-off list": ({"a.json": f"[{GOOD}, {GOOD[:-1]}"}, r"a\.json, row 2: no JSON"),
    "list without commas": ({"a.json": f"[{GOOD} {GOOD}]"}, r"a\.json, row 1: '\{' follows"),
    "no Parquet": ({"a.parquet": b"PAR1"}, "not a Parquet file, or cut off"),
    "open quote": ({"a.csv": 'prompt,completion\na,"b\nc,d\n'}, "a.csv: cannot be read after row 0: unexpected end"),
    "a column twice": ({"a.csv": "prompt,prompt\na,b\n"}, "column 'prompt' is in the header twice"),
    "too many values": ({"a.csv": "prompt,completion\na,b\na,b,c\n"}, r"a\.csv, row 2: 3 values for 2 columns"),
    "no rows": ({"a.jsonl": "\n"}, r"a\.jsonl: no rows"),
    "no format": (
        {"a.csv": "x,y\n1,2\n"},
        "columns x, y are those of no format.*map them with `columns: {prompt: COLUMN}`",
    ),
    "usual names": (
        {"a.csv": "id,Question,Answer\n1,2,3\n"},
        "map them with `columns: {prompt: Question, completion: Answer}`",
    ),
    "one usual name": ({"a.jsonl": '{"prompt": "a", "Output": "b"}\n'}, "with `columns: {completion: Output}`"),
    "one name for both": ({"a.jsonl": '{"input": "a", "x": "b"}\n'}, "with `columns: {prompt: COLUMN}`"),
    "other files": ({"a.jsonl": GOOD, "b.bin": b"x"}, r"b\.bin: no file of rows"),
    "mixed formats": ({"a.jsonl": GOOD, "b.jsonl": '{"text": "x"}'}, r"b\.jsonl, row 1: no `messages`"),
    "several splits": (
        {"dev-00000-of-00001.jsonl": GOOD, "test-00000-of-00001.jsonl": GOOD},
        "holds test, validation and no train",
    ),
}


@pytest.mark.parametrize(("files", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_cannot_be_read_stops_the_step(tmp_path, files, message):
    with pytest.raises(StepError, match=message):
        convert(tmp_path, files)


def test_a_huge_row_is_left_out_without_being_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("learning.data.sources.readers.LONGEST_ROW", 1000)
    content = "\n".join([GOOD, line("x" * 5000, "y"), GOOD])
    rows, result, _ = convert(tmp_path, {"a.jsonl": content}, on_bad_row="drop")
    assert [row["id"] for row in rows] == ["a.jsonl:1", "a.jsonl:3"]
    assert result.details["dropped"] == {"unreadable": 1}


def test_all_rows_bad_is_an_error_whatever_is_done_with_them(tmp_path):
    with pytest.raises(StepError, match="none of 1 rows is left"):
        convert(tmp_path, {"a.jsonl": '{"messages": []}'}, on_bad_row="drop")


@pytest.mark.parametrize("columns", [{"prompt": "{a!r}"}, {"prompt": "{a.__class__[0]}"}, {"prompt": "{"}])
def test_templates_with_more_than_names_are_refused(columns):
    with pytest.raises(ValueError, match="template"):
        Data.model_validate({"kind": "data", "sources": [{"from": "path:x", "columns": columns}]})


def test_a_template_reads_only_what_the_row_holds(tmp_path):
    row = json.dumps({"a": {"b": "2+2?"}, "c": "4"})
    rows, _, _ = convert(tmp_path, {"a.jsonl": row}, columns={"prompt": "{a.b}", "completion": "{c} {{}}"})
    assert spoken(rows[0]) == [("user", "2+2?"), ("assistant", "4 {}")]
    with pytest.raises(StepError, match=r"no column `a\.__class__`, which the template of `prompt` has"):
        convert(tmp_path / "2", {"a.jsonl": row}, columns={"prompt": "{a.__class__}", "completion": "c"})
