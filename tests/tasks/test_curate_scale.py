"""Curation of many shards: no trace of how they are cut or of how many threads there are, in memory that stays."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from learning.data.rows import SCHEMAS
from schemas.errors import StepError
from schemas.stages.curate import Curate
from tasks.context import Context
from tasks.curate import run

HOUSE = Path(__file__).resolve().parents[2]
WORDS = ["".join(random.Random(i).choices("abcdefghij", k=random.Random(-i).randint(1, 7))) for i in range(80)]


def rows(count, seed=0):
    """Texts, many of them near or exact copies of earlier ones."""
    source, texts, made = random.Random(seed), [], []
    for number in range(count):
        words = list(source.choice(texts)) if texts and source.random() < 0.5 else source.choices(WORDS, k=25)
        for _ in range(source.randint(0, 2)):
            words[source.randrange(25)] = source.choice([*WORDS, "é", "漢字", " - ", "x-"])
        texts.append(words)
        messages = [{"role": "assistant", "content": source.choice(["yes", "no", ""])}]
        prompt = [{"role": "user", "content": " ".join(words)}]
        made.append({"id": f"r{number}", "prompt": prompt, "family": "f", "metadata": "{}", "completion": messages})
    return pa.Table.from_pylist(made, schema=SCHEMAS["chat"])


def curated(tmp_path, name, table, cuts, num_threads=1):
    """The bytes of every output."""
    folder, evaluation = tmp_path / name, tmp_path / "evaluation"
    (folder / "data").mkdir(parents=True)
    evaluation.mkdir(exist_ok=True)
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(table)], strict=True)):
        pq.write_table(table.slice(start, end - start), folder / f"data/part-{number:03d}.parquet", row_group_size=77)
    pq.write_table(table.slice(10, 5).select(SCHEMAS["prompts"].names), evaluation / "rows.parquet")
    stage = Curate(
        kind="curate",
        data="d",
        fuzzy_dedup={"threshold": 0.7, "num_perm": 64},
        filters=["repetition"],
        decontaminate={"against_prompts": ["e"], "max_overlap": 0.4},
        limit=100,
    )
    inputs = {"data": folder / "data", "decontaminate.against_prompts.0": evaluation}
    metrics = run(stage, Context(inputs, folder, folder, seed=3, num_threads=num_threads)).metrics
    outputs = folder / "outputs"
    return metrics, {str(p.relative_to(outputs)): p.read_bytes() for p in sorted(outputs.rglob("*.*"))}


def test_shards_and_threads_do_not_show(tmp_path):
    table = rows(500)
    metrics, whole = curated(tmp_path, "whole", table, [])
    assert min(metrics[f"dropped.{reason}"] for reason in ("malformed", "exact_duplicate", "contaminated")) > 3
    assert metrics["dropped.near_duplicate"] > 30
    assert set(whole) == {"data/rows.parquet", "report/dropped.parquet", "report/report.json", "report/report.md"}
    cuts = sorted(random.Random(0).sample(range(1, 500), 9))
    assert curated(tmp_path, "cut", table, cuts, num_threads=2)[1] == whole


def test_a_bad_shard_is_named_and_nothing_is_written(tmp_path):
    table = rows(60)
    (tmp_path / "data").mkdir()
    pq.write_table(table, tmp_path / "data/a.parquet")
    pq.write_table(table.drop_columns("completion"), tmp_path / "data/b.parquet")
    context = Context({"data": tmp_path / "data"}, tmp_path, tmp_path, seed=0)
    with pytest.raises(StepError, match=r"b\.parquet: not chat rows, column\(s\) completion missing"):
        run(Curate(kind="curate", data="d"), context)
    assert not (tmp_path / "outputs").exists()


CHILD = """
import json, resource, sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from learning.data import shards
from schemas.stages.curate import Curate
from tasks.context import Context
from tasks.curate import run
shards.GROUP_BYTES = 4 << 20
folder, count, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(folder / "data").mkdir(parents=True)
source = np.random.default_rng(0)
for number in range(count // 2000):
    letters = source.integers(97, 123, (2000, size), dtype=np.uint8)
    texts = [row.tobytes().decode() for row in letters]
    fixed = {name: [""] * 2000 for name in ("answer", "family", "metadata")}
    ids, prompt = [f"{number}-{i}" for i in range(2000)], [[{"role": "user", "content": text}] for text in texts]
    pq.write_table(pa.table({"id": ids, "prompt": prompt, **fixed}), folder / f"data/{number:05d}.parquet")
stage = Curate(kind="curate", data="d", decontaminate=None, **json.loads(sys.argv[4]))
run(stage, Context({"data": folder / "data"}, folder, folder, seed=0, num_threads=1))
size = sum(path.stat().st_size for path in (folder / "outputs/data").iterdir())
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, size / 2**20]))
"""


def peak(folder, count, size, **settings):
    """Peak memory in MiB of a process that makes and curates so many rows, and MiB that it wrote."""
    command = [sys.executable, "-c", CHILD, str(folder), str(count), str(size), json.dumps(settings)]
    environment = os.environ | {"PYTHONPATH": str(HOUSE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_memory_does_not_grow_with_the_rows(tmp_path):
    few, _ = peak(tmp_path / "few", 4_000, 2000)
    many, written = peak(tmp_path / "many", 32_000, 2000)
    assert written > 35  # 64 MB of text
    assert many - few < 24


@pytest.mark.slow
def test_memory_grows_by_a_few_numbers_per_row_with_near_duplicates(tmp_path):
    few, _ = peak(tmp_path / "few", 30_000, 600, fuzzy_dedup={})
    many, _ = peak(tmp_path / "many", 300_000, 600, fuzzy_dedup={})
    assert many - few < 40 + 270_000 * 250 / 2**20  # the rows take 180 MB, their signatures 140 MB
