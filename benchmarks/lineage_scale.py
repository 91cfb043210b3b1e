"""Lineage over 10,000 runs: ancestry of a model, models that depend on a dataset and a row, a query; one JSON line.

    python benchmarks/lineage_scale.py [--runs 10000] [--generations 100] [--keep FOLDER]

Every run makes a table of rows, drops some in curation and trains a model on the rest, starting from the model of the
previous run; after `generations` runs a new line of models begins. Each query is a separate process, its start
included: [wall seconds, processor seconds], medians. `first` are the queries that create the index.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MODULES = 80
"""Modules in the closure of a step, as those of a real one."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--generations", type=int, default=100)
    parser.add_argument("--rows", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="use this folder again, or make it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        if not (root / ".posttrain/artifacts").is_dir():
            make_runs(root, options.runs, options.generations, options.rows)
        print(json.dumps(measured(root, options)))


def measured(root: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of every question, the first one (which makes the index) apart."""
    last = options.runs - 1
    questions = {
        "ancestry": ["lineage", digest("tuned", last)[:20], "--json"],
        "ancestry_shown": ["lineage", digest("tuned", last)[:20]],
        "dataset": ["lineage", digest("lessons-data", last - options.generations + 1)[:20], "--json"],
        "row": ["lineage", f"row-{last}-1", "--json"],
        "shared_row": ["lineage", "row-shared", "--json"],
        "query": ["query", "select count(*) from steps", "--json"],
    }
    firsts = {"index": seconds(root, questions["ancestry"]), "row_index": seconds(root, questions["row"])}
    medians = {name: median([seconds(root, words) for _ in range(options.rounds)]) for name, words in questions.items()}
    start = median([seconds(root, ["--help"]) for _ in range(options.rounds)])
    size = (root / ".posttrain/index.db").stat().st_size
    return {
        "benchmark": "lineage_scale",
        "runs": options.runs,
        "artifacts": 3 * options.runs,
        "generations": options.generations,
        "start": start,
        **medians,
        "first": firsts,
        "index_megabytes": round(size / 1e6, 1),
        "cores": os.cpu_count(),
    }


def seconds(root: Path, words: list[str]) -> tuple[float, float]:
    """Wall and processor time of `posttrain WORDS`, process start included."""
    house = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "POSTTRAIN_ROOT": str(root), "PYTHONPATH": str(house)}
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "flows.cli", *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(wall, 3), round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


def median(values: list[tuple[float, float]]) -> tuple[float, float]:
    """The middle value of each."""
    wall, processor = (sorted(column)[len(values) // 2] for column in zip(*values, strict=True))
    return wall, processor


def digest(name: str, number: int) -> str:
    """A digest that belongs to a name and a run."""
    return hashlib.sha256(f"{name} {number}".encode()).hexdigest()


def make_runs(root: Path, runs: int, generations: int, rows: int) -> None:
    """Artifacts and plans of so many runs, three steps each, as files that the store would have written."""
    code = {f"learning.module_{n}": digest("code", n) for n in range(MODULES)}
    for number in range(runs):
        ids = [f"row-{number}-{n}" for n in range(rows)] + ["row-shared"]
        lessons = put(root, number, "lessons", "synthesize", [], code, table=("rows.parquet", {"id": ids}))
        lost = {"id": ids[:2], "reason": ["duplicate"] * 2, "detail": [""] * 2}
        given = [{"port": "data", "step": "lessons", "key": lessons, "output": "data"}]
        clean = put(root, number, "clean", "curate", given, code, ("rows.parquet", {"id": ids[2:]}), lost)
        before = [{"port": "model", "step": "tuned", "key": digest("tuned", number - 1), "output": "data"}]
        parents = before if number % generations else []
        given = [{"port": "data", "step": "clean", "key": clean, "output": "data"}, *parents]
        tuned = put(root, number, "tuned", "sft", given, code)
        folder = root / f".posttrain/runs/run-{number:06d}"
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps({"steps": [{"key": key} for key in (lessons, clean, tuned)]}))


def put(
    root: Path,
    number: int,
    step: str,
    kind: str,
    inputs: list[dict[str, str]],
    code: dict[str, str],
    table: tuple[str, dict[str, list[str]]] | None = None,
    dropped: dict[str, list[str]] | None = None,
) -> str:
    """Write one artifact; returns its key."""
    key = digest(step, number)
    folder = root / f".posttrain/artifacts/{kind}-{key[:16]}"
    tables = {"rows.parquet": table[1]} if table else {}
    tables |= {"dropped.parquet": dropped} if dropped else {}
    files = []
    for name, columns in tables.items():
        path = folder / "outputs/data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        body = path.read_bytes()
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest()
        files.append({"path": name, "size": len(body), "md5": md5, "sha256": hashlib.sha256(body).hexdigest()})
    if not tables:
        names = (
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
        )
        files = [
            {"path": n, "size": 1, "md5": digest(key, i)[:32], "sha256": digest(key, i)} for i, n in enumerate(names)
        ]
    made = {
        "type": "chat" if tables else "policy",
        "digest": digest(f"{step}-data", number),
        "dvc": digest(f"{step}-dvc", number)[:32] + ".dir",
        "files": files,
    }
    manifest = {
        "key": key,
        "kind": kind,
        "step": step,
        "recipe": "weekly",
        "run": f"run-{number:06d}",
        "seed": 7,
        "identity": {"settings": {f"option_{n}": n for n in range(30)}, "code": code},
        "inputs": [i | {"source": None, "digest": "00" * 32, "type": made["type"]} for i in inputs],
        "outputs": {"data": made},
        "metrics": {"loss": 0.5},
        "started": f"2026-01-01T00:00:00.{number:06d}+00:00",
        "details": {"dropped": {"duplicate": 2}} if dropped else {},
        "seconds": 1.0,
        "commit": digest("commit", 0)[:40],
        "versions": {"torch": "2"},
        "cpu_seconds": 1.0,
        "gpu_seconds": 0.0,
        "peak_rss": 1,
        "dirty": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    return key


if __name__ == "__main__":
    main()
