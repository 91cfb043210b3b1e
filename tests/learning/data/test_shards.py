"""Tables as Parquet files: the bytes do not tell how the rows came, and what is wrong is named."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data import shards
from learning.data.rows import SCHEMAS, count_rows, open_row_writer, read_rows, scan_rows, write_rows
from learning.data.shards import count_bytes, count_text_bytes, find_shards
from schemas.errors import StepError


def row(number, source):
    text = "".join(source.choices("abc dé漢", k=source.randint(0, 60)))
    messages = [{"role": "assistant", "content": text if number % 5 else None}] if number % 7 else None
    prompt = [{"role": "user", "content": text}] * (number % 3)
    fixed = {"answer": None if number % 2 else text, "family": "f", "metadata": "{}"}
    return {"id": f"r{number}", "prompt": prompt, **fixed, "completion": messages}


@pytest.fixture(scope="module")
def rows():
    source = random.Random(0)
    return [row(number, source) for number in range(3000)]


@pytest.fixture
def small(monkeypatch):
    """Tables of many files already at a few hundred rows."""
    monkeypatch.setattr(shards, "UNIT", 64)
    monkeypatch.setattr(shards, "GROUP_ROWS", 256)
    monkeypatch.setattr(shards, "GROUP_BYTES", 8 << 10)
    monkeypatch.setattr(shards, "SHARD_GROUPS", 2)


def parts(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def written(folder, rows, cuts):
    folder.mkdir()
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["chat"])
    with open_row_writer(folder, "chat") as writer:
        for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            writer.write(table.slice(start, end - start))
    return parts(folder)


def test_a_small_table_is_the_file_that_pyarrow_writes(tmp_path, rows):
    for count in (0, 1, 1023, 1024, 3000):
        write_rows(tmp_path, "chat", rows[:count])
        table = pa.Table.from_pylist(rows[:count], schema=SCHEMAS["chat"])
        pq.write_table(table, tmp_path / "other", compression="zstd")
        assert (tmp_path / "rows.parquet").read_bytes() == (tmp_path / "other").read_bytes()
        assert read_rows(tmp_path, "chat") == rows[:count]


def test_bytes_and_cuts_depend_on_the_rows_alone(tmp_path, rows, small):
    whole = written(tmp_path / "whole", rows, [])
    assert len(whole) > 3
    assert list(whole)[:2] == ["rows-00000.parquet", "rows-00001.parquet"]
    for seed in range(3):
        cuts = sorted(random.Random(seed).sample(range(len(rows)), 40))
        assert written(tmp_path / f"cut{seed}", rows, cuts) == whole
    assert read_rows(tmp_path / "whole", "chat") == rows
    sizes = [pq.ParquetFile(tmp_path / "whole" / name).metadata for name in whole]
    assert all(size.num_row_groups == 2 for size in sizes[:-1])
    assert max(size.row_group(i).num_rows for size in sizes for i in range(size.num_row_groups)) <= 256
    assert sizes[0].row_group(0).column(0).statistics.has_min_max


def test_the_size_of_text_is_what_python_counts_and_slices_do_not_change_it(rows):
    table = pa.Table.from_pylist(rows[:100], schema=SCHEMAS["chat"])

    def size(value):
        if isinstance(value, str):
            return len(value.encode())
        if isinstance(value, dict):
            return sum(map(size, value.values()))
        return sum(map(size, value)) if isinstance(value, list) else 0

    assert count_text_bytes(table) == sum(size(row) for row in rows[:100])
    assert sum(count_text_bytes(table.slice(i, 7)) for i in range(0, 100, 7)) == count_text_bytes(table)


def test_rows_are_read_from_any_row_on(tmp_path, rows, small):
    written(tmp_path / "a", rows, [])
    for start in (0, 1, 255, 256, 511, 513, 1700, 2999, 3000, 5000):
        names = [name for batch in scan_rows(tmp_path / "a", "chat", start=start) for name in batch["id"].to_pylist()]
        assert names == [row["id"] for row in rows[start:]]
    assert count_rows(tmp_path / "a", "chat") == 3000
    assert next(scan_rows(tmp_path / "a", "chat", columns=["family"])).schema.names == ["family"]


def test_a_folder_from_outside_has_files_of_any_names_and_one_split(tmp_path, rows):
    table = pa.Table.from_pylist(rows[:30], schema=SCHEMAS["chat"])
    (tmp_path / "data").mkdir()
    for number in (1, 0):
        name = f"data/train-{number:05d}-of-00002.parquet"
        pq.write_table(table.slice(15 * number, 15).select(table.schema.names[::-1]), tmp_path / name)
    pq.write_table(table.slice(0, 3), tmp_path / "data/test-00000-of-00001.parquet")
    (tmp_path / ".cache").mkdir()
    pq.write_table(table.slice(0, 3), tmp_path / ".cache/train-00000-of-00001.parquet")
    assert read_rows(tmp_path, "chat") == rows[:30]
    assert count_bytes(find_shards(tmp_path)) > 0
    (tmp_path / "other").mkdir()
    pq.write_table(table, tmp_path / "other/train-00000-of-00001.parquet")
    with pytest.raises(StepError, match=r"several data sets \(data, other\)"):
        find_shards(tmp_path)


def test_columns_of_another_type_are_cast_where_that_loses_nothing(tmp_path, rows):
    table = pa.Table.from_pylist(rows[:30], schema=SCHEMAS["chat"])
    table = table.set_column(0, "id", table["id"].cast(pa.large_string()))
    table = table.set_column(3, "family", table["family"].dictionary_encode()).append_column("more", table["id"])
    pq.write_table(table, tmp_path / "any.parquet")
    assert read_rows(tmp_path, "chat") == rows[:30]


def bad(folder, rows, change):
    """Three files, the second of which is changed."""
    table = pa.Table.from_pylist(rows[:90], schema=SCHEMAS["chat"])
    for number in range(3):
        part = table.slice(30 * number, 30)
        pq.write_table(change(part) if number == 1 else part, folder / f"rows-{number:05d}.parquet")
    return folder / "rows-00001.parquet"


def test_a_file_without_a_column_or_with_another_type_is_named_before_anything_is_read(tmp_path, rows):
    bad(tmp_path, rows, lambda part: part.drop_columns(["prompt", "family"]))
    with pytest.raises(StepError, match=r"rows-00001\.parquet: not chat rows, column\(s\) prompt, family missing"):
        next(scan_rows(tmp_path, "chat"))
    bad(tmp_path, rows, lambda part: part.set_column(1, "prompt", part["answer"]))
    with pytest.raises(StepError, match=r"rows-00001\.parquet: not chat rows: column prompt: "):
        next(scan_rows(tmp_path, "chat"))


def test_a_file_cut_off_damaged_or_missing_is_named(tmp_path, rows):
    path = bad(tmp_path, rows, lambda part: part)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(StepError, match=r"rows-00001\.parquet: not a Parquet file, or cut off"):
        read_rows(tmp_path, "chat")
    path.write_bytes(whole[:40] + bytes(300) + whole[340:])
    with pytest.raises(StepError, match=r"rows-00001\.parquet: not chat rows: damaged"):
        read_rows(tmp_path, "chat")
    path.unlink()
    with pytest.raises(StepError, match=r"rows-00001\.parquet is missing, rows-00002\.parquet is there"):
        read_rows(tmp_path, "chat")


def test_text_that_is_not_utf8_is_named_with_its_column(tmp_path, rows):
    broken = pa.Array.from_buffers(
        pa.string(), 30, [None, pa.py_buffer(bytes(120) + b"\x01\0\0\0"), pa.py_buffer(b"\xff")]
    )
    bad(tmp_path, rows, lambda part: part.set_column(2, "answer", broken))
    with pytest.raises(StepError, match=r"rows-00001\.parquet: column answer: damaged rows, or text that is not UTF-8"):
        read_rows(tmp_path, "chat")
