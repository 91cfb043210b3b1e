"""Rows on disk by their number: the same rows as in memory, made once however often the maker dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from learning.data import rows as tables
from learning.data import stored_rows as stored
from learning.data.rows import read_rows, write_rows
from learning.data.stored_rows import RowSubset, StoredRows, get_part_path, open_rows, store_rows
from learning.preference.batches import Pair, count_tokens, iterate_groups, split_by_prompt
from schemas.errors import StepError

SCHEMA = pa.schema([("ids", pa.list_(pa.int32())), ("size", pa.int32())])


def encode(row):
    """Rows whose number is a multiple of 7 are left out."""
    return None if row["n"] % 7 == 0 else {"ids": list(range(row["n"] % 50)), "size": row["n"]}


EXPECTED = [n for n in range(1000) if n % 7]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Stores a thousand rows in files made of a hundred each; what was asked of the source is in `asked`."""
    monkeypatch.setattr(stored, "PART", 100)
    asked = []

    def source(start):
        for n in range(start, 1000):
            asked.append(n)
            yield {"n": n}

    def make(fails_at=None, count=1000):
        def failing(row):
            if row["n"] == fails_at:
                raise KeyboardInterrupt
            made = encode(row)
            return [] if made is None else [made]

        return store_rows(tmp_path / "kept", SCHEMA, count, source, failing, lambda row: (row["size"], row["ids"]))

    make.asked = asked
    return make


def test_rows_are_found_by_number_and_in_order(kept, monkeypatch):
    monkeypatch.setattr(stored, "OPEN", 3)
    kept_rows = kept()
    assert len(kept_rows) == len(EXPECTED)
    assert [n for n, _ in kept_rows] == EXPECTED
    for i in (0, 31, 32, 85, 86, 500, -1, len(EXPECTED) - 1):
        assert kept_rows[i] == (EXPECTED[i], list(range(EXPECTED[i] % 50)))
    assert [n for n, _ in kept_rows[80:90]] == EXPECTED[80:90]
    assert kept_rows.column("size").tolist() == EXPECTED
    with pytest.raises(IndexError):
        kept_rows[len(EXPECTED)]
    chosen = RowSubset(kept_rows, [5, 700, 2])
    assert [n for n, _ in chosen] == [EXPECTED[i] for i in (5, 700, 2)]
    assert [n for n, _ in chosen[1:]] == [EXPECTED[i] for i in (700, 2)]


def test_a_killed_maker_is_followed_by_one_that_goes_on(kept, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        kept(fails_at=450)
    assert get_part_path(tmp_path / "kept", 3).is_file()
    assert not get_part_path(tmp_path / "kept", 4).exists()
    kept.asked.clear()
    assert [n for n, _ in kept()] == EXPECTED
    assert kept.asked == list(range(400, 1000))
    kept.asked.clear()
    assert len(kept()) == len(EXPECTED)
    assert kept.asked == []


def test_nothing_kept_is_an_empty_sequence(kept):
    stored = kept(count=1)
    assert (len(stored), list(stored), stored.column("size").tolist()) == (0, [], [])


@pytest.mark.parametrize("harm", ["cut", "flip", "other part", "no seal", "foreign seal"])
def test_a_damaged_file_is_made_again(kept, tmp_path, harm, capsys):
    rows = list(kept())
    folder = tmp_path / "kept"
    path = get_part_path(folder, 2)
    content = path.read_bytes()
    {
        "cut": lambda: path.write_bytes(content[:100]),
        "flip": lambda: path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
        "other part": lambda: path.write_bytes(get_part_path(folder, 3).read_bytes()),
        "no seal": (folder / "part-00002.seal").unlink,
        "foreign seal": lambda: (folder / "part-00002.seal").write_bytes((folder / "part-00003.seal").read_bytes()),
    }[harm]()
    assert list(kept()) == rows
    assert path.read_bytes() == content
    assert ("part-00002.arrow is not as it was written" in capsys.readouterr().out) == (harm != "no seal")


def test_a_file_damaged_while_it_is_read_is_named(kept, tmp_path):
    stored = kept()
    path = get_part_path(tmp_path / "kept", 2)
    path.write_bytes(path.read_bytes()[:100])
    stored._open.clear()
    with pytest.raises(StepError, match=r"part-00002\.arrow: damaged"):
        list(stored)


def prompt(number):
    messages = [{"role": "user", "content": f"{number}"}, {"role": "user", "content": None}]
    return {"id": f"{number}", "prompt": messages, "answer": None, "family": "f", "metadata": "{}"}


def test_rows_that_do_not_fit_are_the_same_rows(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data", "prompts", [prompt(i) for i in range(300)])
    assert isinstance(open_rows(tmp_path / "data", "prompts", tmp_path / "kept"), list)
    assert not (tmp_path / "kept").exists()
    monkeypatch.setattr(tables, "IN_MEMORY", 0)
    stored = open_rows(tmp_path / "data", "prompts", tmp_path / "kept")
    assert isinstance(stored, StoredRows)
    assert list(stored) == read_rows(tmp_path / "data", "prompts")
    assert stored[123] == prompt(123)


def test_the_split_by_prompt_is_the_same_on_disk(tmp_path):
    pairs = [Pair(str(i), [i % 13, 1], [2] * (i % 5 + 1), [3], None) for i in range(200)]
    schema = pa.schema([(name, pa.list_(pa.int32())) for name in ("prompt", "chosen", "rejected")])
    for name, kind in (("id", pa.string()), ("margin", pa.float64()), ("metadata", pa.string()), ("size", pa.int32())):
        schema = schema.append(pa.field(name, kind))

    def make(row):
        return Pair(**{k: v for k, v in row.items() if k != "size"})

    kept = store_rows(
        tmp_path, schema, 200, lambda start: iter(pairs[start:]), lambda p: [vars(p) | {"size": p.size}], make
    )
    for given, expected in zip(split_by_prompt(kept, 0.3), split_by_prompt(pairs, 0.3), strict=True):
        assert isinstance(expected, list)
        assert list(given) == expected
        assert count_tokens(given) == count_tokens(expected)
        assert [len(group) for group in iterate_groups(given, 20)] == [len(g) for g in iterate_groups(expected, 20)]
    assert count_tokens(kept) == count_tokens(pairs)


CHILD = """
import json, resource, sys
from pathlib import Path
import pyarrow as pa
from learning.data.epochs import Epochs
from learning.data.stored_rows import store_rows
count, row = int(sys.argv[2]), {"ids": list(range(1000, 1250)), "size": 250}
schema = pa.schema([("ids", pa.list_(pa.int32())), ("size", pa.int32())])
numbers = lambda start: iter(range(start, count))
kept = store_rows(Path(sys.argv[1]), schema, count, numbers, lambda n: [row], lambda row: row)
epochs = Epochs(kept.column("size"), per_pass=8, passes=1, seed=0)
seen = [kept[i] for step in range(100) for i in epochs.at(step)[0]]
size = sum(path.stat().st_size for path in Path(sys.argv[1]).iterdir())
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, size / 2**20]))
"""


def peak(folder, count):
    """Peak memory in MiB of a process that stores rows and reads an epoch's first, and MiB on disk."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(folder), str(count)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_memory_holds_the_lengths_and_not_the_rows(tmp_path):
    (few, _), (many, size) = peak(tmp_path / "few", 5_000), peak(tmp_path / "many", 70_000)
    assert size > 60
    assert many - few < 20
