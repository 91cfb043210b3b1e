"""The runs of benchmarks/lineage_scale.py, fewer of them: what is asked is found, and nothing else is read."""

import importlib.util
from pathlib import Path

import pytest

from lineage.catalogue.index import Index, query_index
from lineage.catalogue.row_index import read_new_tables
from lineage.layout import Layout
from lineage.tracing.ancestry import trace

RUNS, GENERATIONS = 60, 12


@pytest.fixture(scope="module")
def scale():
    path = Path(__file__).resolve().parents[3] / "benchmarks/lineage_scale.py"
    spec = importlib.util.spec_from_file_location("lineage_scale", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def many(scale, tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    scale.make_runs(root, RUNS, GENERATIONS, rows=4)
    assert query_index(Layout(root), read_new_tables) == 3 * RUNS  # lessons, clean, and what clean dropped
    return Layout(root)


def runs(nodes):
    return {(n.record["step"], n.record["run"]) for n in nodes}


def test_ancestry_is_the_line_of_the_model_and_only_that_is_read(scale, many, monkeypatch):
    read = []
    original = Index._read
    monkeypatch.setattr(Index, "_read", lambda self, *row: read.append(row[1]) or original(self, *row))
    monkeypatch.setattr("lineage.catalogue.index.read_record", lambda folder: pytest.fail("a manifest was read"))
    ancestry = trace(many, scale.digest("tuned", RUNS - 1)[:20])
    line = range(RUNS - GENERATIONS, RUNS)
    assert runs(ancestry.up) == {(s, f"run-{n:06d}") for n in line for s in ("lessons", "clean", "tuned")}
    assert len(read) == 3 * GENERATIONS + 1  # the model is where both directions begin


def test_a_dataset_and_a_row_reach_the_models_after_them(scale, many):
    first = RUNS - GENERATIONS
    after = {("lessons", f"run-{first:06d}"), ("clean", f"run-{first:06d}")}
    after |= {("tuned", f"run-{n:06d}") for n in range(first, RUNS)}
    assert runs(trace(many, scale.digest("lessons-data", first)[:20]).down) == after
    assert runs(trace(many, f"row-{first}-3").down) == after
    dropped = trace(many, f"row-{first}-0")
    assert runs(dropped.down) == {("lessons", f"run-{first:06d}")}
    assert [reason for _, reason, _ in dropped.target.dropped] == ["duplicate"]
    shared = [n for n in trace(many, "row-shared").down if n.record["step"] == "tuned"]
    assert len(shared) == RUNS
