"""The index answers as a look at every manifest would, whatever happened to the artifacts since it was made."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lineage.catalogue.index import FILE, query_index
from lineage.catalogue.row_index import find_row, read_new_tables
from lineage.records import read_record, read_records, slim_record
from lineage.tracing.ancestry import trace
from lineage.tracing.target import UnknownTarget

HOUSE = Path(__file__).resolve().parents[3]
IDS = [f"row {n}" for n in range(6)]


def by_reading_everything(layout, key):
    """Keys of all ancestors and of all descendants, from the manifests alone."""
    records = {r["key"]: r for r in read_records(layout)}
    parents = {k: {i["key"] for i in r["inputs"] if i.get("key")} & set(records) for k, r in records.items()}

    def closure(step):
        keys, waiting = set(), [key]
        while waiting:
            if (one := waiting.pop()) not in keys:
                keys.add(one)
                waiting += step(one)
        return keys

    return closure(lambda k: parents[k]), closure(lambda k: [c for c in parents if k in parents[c]])


def by_reading_every_table(layout, row):
    """Keys of the artifacts that hold a row, and (key, reason) of those that dropped it."""
    holders, dropped = set(), set()
    for record in read_records(layout):
        for path in Path(record["folder"]).glob("outputs/*/*.parquet"):
            for entry in pq.read_table(path).to_pylist():
                if entry["id"] == row and path.name == "rows.parquet":
                    holders.add(record["key"])
                elif entry["id"] == row:
                    dropped.add((record["key"], entry["reason"]))
    return holders, dropped


def grow(maker, rng, number):
    """One more artifact: a table, a curation of one, or a model of one and of another model."""
    made = list(maker.made)
    tables = [m for m in made if m.startswith(("table", "clean"))]
    kind = rng.choice(["table", "clean", "model"]) if tables else "table"
    name, data = f"{kind}{number}", rng.sample(IDS, rng.randint(1, 5))
    if kind == "table":
        source = rng.choice([None, "path:./words"])
        maker.make(
            name, "synthesize", {"data": {"rows.parquet": [{"id": i} for i in data]}}, {"data": "chat"}, source=source
        )
    elif kind == "clean":
        lost = [{"id": i, "reason": rng.choice(["length", "duplicate"]), "detail": ""} for i in IDS if i not in data]
        files = {"data": {"rows.parquet": [{"id": i} for i in data]}, "report": {"dropped.parquet": lost}}
        maker.make(
            name, "curate", files, {"data": "chat", "report": "directory"}, [("data", rng.choice(tables), "data")]
        )
    else:
        inputs = [("data", rng.choice(tables), "data")]
        inputs += [("model", m, "model") for m in rng.sample(made, min(1, len(made))) if m.startswith("model")]
        maker.make(name, "sft", {"model": {"w": os.urandom(4)}}, {"model": "policy"}, inputs)


def harm(maker, rng):
    """What may happen to an artifact: it goes, its manifest is damaged, or written anew."""
    gone = rng.choice(list(maker.made))
    folder = maker.store.folder(maker.made[gone])
    if not folder.is_dir():
        return
    how = rng.choice(["gone", "damaged", "rewritten"])
    if how == "gone":
        shutil.rmtree(folder)
    elif how == "damaged":
        (folder / "manifest.json").write_text("{")
    elif (folder / "manifest.json").read_text() != "{":
        text = json.loads((folder / "manifest.json").read_text()) | {"step": f"renamed {gone}", "inputs": []}
        (folder / "manifest.json").write_text(json.dumps(text))


def agrees(layout):
    everything = read_records(layout)
    kept = query_index(layout, lambda index: list(index.records()))
    assert [r["key"] for r in kept] == [r["key"] for r in everything]
    assert kept == [json.loads(json.dumps(slim_record(record))) for record in everything]
    for record in everything:
        found = trace(layout, record["key"])
        up, down = by_reading_everything(layout, record["key"])
        assert ({n.record["key"] for n in found.up}, {n.record["key"] for n in found.down}) == (up, down)
        assert trace(layout, record["step"]).target.keys[-1] == record["key"]
        assert record["key"] in trace(layout, record["run"]).target.keys
        for output in record["outputs"].values():
            made = [r["key"] for r in everything if output["digest"] in {o["digest"] for o in r["outputs"].values()}]
            assert trace(layout, output["digest"]).target.keys == tuple(made)
    for row in IDS:
        places = query_index(layout, lambda index, row=row: find_row(index, row))
        found = set(places.holders), {(key, reason) for key, reason, _ in places.dropped}
        assert found == by_reading_every_table(layout, row)


@pytest.mark.parametrize(
    "seed", [0, 1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_it_answers_as_reading_everything_would(maker, seed):
    rng = random.Random(seed)
    for number in range(12):
        grow(maker, rng, number)
        if number in (5, 8, 11):
            agrees(maker.layout)
            harm(maker, rng)
    agrees(maker.layout)


def test_what_was_read_is_not_read_again(small_run, monkeypatch):
    read = []

    def noted(folder):
        read.append(Path(folder).name)
        return read_record(folder)

    monkeypatch.setattr("lineage.catalogue.index.read_record", noted)
    assert trace(small_run.layout, "b").target.dropped
    assert sorted(read) == sorted(p.name for p in (small_run.layout.state / "artifacts").iterdir())
    read.clear()
    monkeypatch.setattr(pq, "read_table", lambda *a, **k: pytest.fail("a table was read again"))
    assert trace(small_run.layout, "b").target.dropped
    monkeypatch.undo()
    monkeypatch.setattr("lineage.catalogue.index.read_record", lambda folder: pytest.fail("a manifest was read again"))
    assert len(trace(small_run.layout, "tuned").up) == 4


def test_equal_tables_are_read_once(maker):
    rows = {"data": {"rows.parquet": [{"id": "a"}]}}
    for name in ("one", "two", "three"):
        maker.make(name, "synthesize", rows, {"data": "chat"})
    assert query_index(maker.layout, read_new_tables) == 1
    assert len(trace(maker.layout, "a").target.keys) == 3


def test_a_table_that_is_missing_is_read_when_it_is_back(small_run):
    folder = small_run.store.folder(small_run.made["lessons"])
    table = folder / "outputs/data/rows.parquet"
    body = table.read_bytes()
    table.unlink()
    assert small_run.made["lessons"].key not in trace(small_run.layout, "a").target.keys
    table.write_bytes(body)
    assert small_run.made["lessons"].key in trace(small_run.layout, "a").target.keys


@pytest.mark.parametrize("body", [b"", b"not a database at all" * 100, None])
def test_a_damaged_or_outdated_index_is_rebuilt(small_run, body):
    file = small_run.layout.state / FILE
    assert len(trace(small_run.layout, "tuned").up) == 4
    if body is None:
        with sqlite3.connect(file) as connection:
            connection.execute("pragma user_version = 0")
            connection.execute("delete from inputs")
        connection.close()
    else:
        file.write_bytes(body)
    assert len(trace(small_run.layout, "tuned").up) == 4
    with sqlite3.connect(file) as connection:
        assert connection.execute("select count(*) from inputs").fetchone() == (5,)
    connection.close()


def test_an_index_that_cannot_be_written_is_made_in_memory(small_run):
    (small_run.layout.state / FILE).mkdir()
    assert len(trace(small_run.layout, "tuned").up) == 4
    assert trace(small_run.layout, "b").target.dropped


def test_nothing_is_written_where_nothing_was_made(maker):
    with pytest.raises(UnknownTarget, match="none yet"):
        trace(maker.layout, "anything")
    assert not maker.layout.state.exists()


def test_several_processes_may_query_concurrently(small_run):
    code = (
        "import sys; from pathlib import Path; from lineage.layout import Layout\n"
        "from lineage.tracing.ancestry import trace\n"
        "found = trace(Layout(Path(sys.argv[1])), 'b'); print(len(found.down), len(found.target.dropped))"
    )
    command = [sys.executable, "-c", code, str(small_run.layout.root)]
    asking = [subprocess.Popen(command, cwd=HOUSE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0] for process in asking] == ["2 1\n"] * 4
