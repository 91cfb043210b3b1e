"""Slices of splits have the rows that the library datasets gives for the same words."""

import json

import pytest
from pydantic import ValidationError

from learning.data.sources.look import look_at_source
from schemas.data_slices import parse_split
from schemas.errors import StepError
from schemas.stages.data import Data, Source
from tests.tasks.data_stages import convert

SLICES = [
    "[:5%]",
    "[5%:]",
    "[33%:66%]",
    "[-10%:]",
    "[:-25%]",
    "[100:200]",
    "[3:4]",
    "[-2:]",
    "[:-1]",
    "[:]",
    "[:1_0]",
    "[5:]",
    "[200:100]",
]


@pytest.mark.parametrize("count", [1, 7, 101, 150])
@pytest.mark.parametrize("text", SLICES)
def test_bounds_are_those_of_datasets(text, count):
    from datasets.arrow_reader import ReadInstruction

    theirs = ReadInstruction.from_spec(f"train{text}").to_absolute({"train": count})[0]
    name, part = parse_split(f"train{text}")
    start, stop = part.resolve(count)
    assert (name, start, max(stop - start, 0)) == ("train", theirs.from_, max(theirs.to - theirs.from_, 0))


def write_rows(first, last):
    return "\n".join(json.dumps({"prompt": f"{i}?", "completion": str(i)}) for i in range(first, last))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[:30%]", range(3)),
        ("[3:5]", range(3, 5)),
        ("train[4:]", range(4, 10)),
        ("[-2:]", range(8, 10)),
        ("train", range(10)),
    ],
)
def test_a_slice_reads_across_files_and_names_rows_by_their_place(tmp_path, split, expected):
    files = {"a.jsonl": "\n" + write_rows(0, 4), "b.jsonl": write_rows(4, 10)}
    rows, result, _ = convert(tmp_path, files, split=split)
    assert [row["completion"][0]["content"] for row in rows] == [str(i) for i in expected]
    places = [f"a.jsonl:{i + 2}" if i < 4 else f"b.jsonl:{i - 3}" for i in expected]
    assert [row["id"] for row in rows] == places
    assert result.metrics["rows"] == len(expected)
    look = look_at_source(tmp_path / "in", Source(**{"from": "path:in", "split": split}), "chat")
    assert look.rows == len(expected)


def test_rows_outside_of_a_slice_may_be_bad_and_unreadable_ones_count(tmp_path):
    lines = write_rows(0, 10).splitlines()
    lines[0], lines[9] = '{"prompt": ""}', "{"
    rows, _, _ = convert(tmp_path, {"a.jsonl": "\n".join(lines)}, split="train[10%:90%]")
    assert len(rows) == 8


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_rows_of_other_files_are_counted_too(tmp_path, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"prompt": f"{i}?", "completion": str(i)} for i in range(10)]
    folder = tmp_path / "in"
    folder.mkdir()
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    text = {"csv": "prompt,completion\n" + "".join(f"{i}?,{i}\n" for i in range(10)), "json": json.dumps(rows)}
    made, _, _ = convert(tmp_path, {f"a.{suffix}": text[suffix]} if suffix in text else {}, split="[-25%:]")
    assert [row["completion"][0]["content"] for row in made] == ["8", "9"]


def test_a_slice_belongs_to_its_split_and_may_not_be_empty(tmp_path):
    files = {"train.jsonl": write_rows(0, 4), "test.jsonl": write_rows(4, 10)}
    rows, _, _ = convert(tmp_path, files, split="test[:50%]")
    assert [row["completion"][0]["content"] for row in rows] == ["4", "5", "6"]
    with pytest.raises(StepError, match=r"no rows in train\[7:\]"):
        convert(tmp_path / "empty", files, split="train[7:]")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"split": "train[5%]"}, "is no split; write a name, or a slice"),
        ({"split": "train[:10%]+train[-10%:]"}, "write several sources, one for each part"),
        ({"split": "train[10%:20]"}, "give both bounds as rows, or both in percent"),
        ({"split": "train[:120%]"}, "more than 100 percent"),
        ({"split": "train[%:]"}, "give both bounds"),
        ({"split": "[:5]", "query": "select * from rows"}, "write `limit` and `offset` in the `query`"),
    ],
)
def test_what_is_no_slice_is_refused(source, message):
    with pytest.raises(ValidationError, match=message):
        Data.model_validate({"kind": "data", "sources": [{"from": "path:a", **source}]})
