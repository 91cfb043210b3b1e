"""Curation of millions of rows: time, peak memory, and the recall and precision of each filter on planted rows.

    python benchmarks/curate_scale.py [--rows 10000000] [--threads 2] [--peer-rows 20000] [--folder DIR]

Rows are generated as Parquet shards: conversations of 36 words, some 250 characters. Each planted row repeats the text
of an earlier row: 5 % are exact duplicates, 5 % near-duplicates (one letter differs), and 2 % share two thirds of their
words with an earlier row and must be kept. 0.1 % contain a problem of an evaluation with 2000 problems. Then the
`curate` task runs in a separate process (exact and near deduplication at its default threshold, decontamination), and
one JSON line gives rows per second, CPU time and peak memory of that process, and recall and precision of each filter.
Disk: about 1.1 kB per row, below --folder (default: the system's temporary folder), removed at the end.

The peer is datasketch, applied row by row to the texts of fewer rows; both must remove the same rows. One JSON line
gives the ratio.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS, ASKED, VOCABULARY = 36, 24, 20_000
PROBLEMS, PROBLEM_WORDS, PLACE = 2000, 20, 2
SHARD = 500_000
KINDS = {"exact": 0.05, "near": 0.05, "similar": 0.02, "contaminated": 0.001}
REASONS = {
    "exact": {"exact_duplicate"},
    "near": {"near_duplicate", "exact_duplicate"},  # two rows with the same letter changed are equal
    "contaminated": {"contaminated"},
}
COPIES = {"exact": {"exact", "near"}, "near": {"exact", "near"}}
"""Kinds that a filter for one kind may take as well."""
FIRST_PROBLEM = 1 << 40
"""Texts from this number on belong to the evaluation."""


def drawn(numbers: np.ndarray, salt: int) -> np.ndarray:
    """64 random bits for each number (SplitMix64), so that any row can be made without those before it."""
    x = (numbers.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def vocabulary() -> pa.Array:
    """Distinct words of 3 to 9 letters; the second half is the first with a letter that no other word has."""
    source = np.random.default_rng(0)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words["".join(source.choice(list("abcdefghijklmnoprstuvwyz"), source.integers(3, 10)))] = None
    changed = [word[: len(word) // 2] + "q" + word[len(word) // 2 + 1 :] for word in words]
    return pa.array([*words, *changed])


def words_of(texts: np.ndarray, count: int) -> np.ndarray:
    """The words of texts as numbers (texts x count)."""
    places = texts[:, None] * np.int64(64) + np.arange(count)
    return (drawn(places, 1) % np.uint64(VOCABULARY)).astype(np.int64)


def kinds_of(rows: np.ndarray) -> np.ndarray:
    """What each row is: 0 an original, else the place of its kind in KINDS plus one. The first rows are originals."""
    share = drawn(rows, 2) / 2.0**64
    borders = np.cumsum(list(KINDS.values()))
    kinds = np.searchsorted(borders, share, "right") + 1
    return np.where((kinds > len(KINDS)) | (rows < 100), 0, kinds)


def originals_before(rows: np.ndarray) -> np.ndarray:
    """For each row an earlier one that is an original."""
    originals = np.zeros(len(rows), np.int64)
    open_ = np.ones(len(rows), bool)
    for salt in range(3, 40):
        chosen = (drawn(rows, salt) % np.maximum(rows, 1).astype(np.uint64)).astype(np.int64)
        taken = open_ & (kinds_of(chosen) == 0)
        originals[taken] = chosen[taken]
        open_ &= ~taken
    return originals


def made(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kind and words of rows."""
    kinds = kinds_of(rows)
    exact, near, similar, contaminated = (kinds == k for k in (1, 2, 3, 4))
    words = words_of(np.where(exact | near | similar, originals_before(rows), rows), WORDS)
    place = (drawn(rows, 50) % np.uint64(WORDS)).astype(np.int64)
    words[near, place[near]] += VOCABULARY
    others = words_of(rows + (1 << 39), WORDS)
    words[:, ::3] = np.where(similar[:, None], others[:, ::3], words[:, ::3])
    asked = FIRST_PROBLEM + (drawn(rows, 51) % np.uint64(PROBLEMS)).astype(np.int64)
    words[contaminated, PLACE : PLACE + PROBLEM_WORDS] = words_of(asked[contaminated], PROBLEM_WORDS)
    return kinds, words


def messages(role: str, words: np.ndarray, texts: pa.Array) -> pa.Array:
    """One message per row."""
    ends = pa.array(np.arange(0, words.size + 1, words.shape[1], dtype=np.int32))
    import pyarrow.compute as pc

    joined = pc.binary_join(pa.ListArray.from_arrays(ends, texts.take(pa.array(words.ravel()))), " ")
    struct = pa.StructArray.from_arrays(
        [pa.array([role]).take(pa.array(np.zeros(len(joined), np.int64))), joined], names=["role", "content"]
    )
    return pa.ListArray.from_arrays(pa.array(np.arange(len(joined) + 1, dtype=np.int32)), struct)


def table(rows: np.ndarray, texts: pa.Array) -> pa.Table:
    """Chat rows; the id begins with the kind."""
    kinds, words = made(rows)
    names = np.array(["original", *KINDS])[kinds]
    fixed = {name: pa.array([value] * len(rows)) for name, value in (("answer", ""), ("family", "f"), ("metadata", ""))}
    return pa.table(
        {
            "id": pa.array(np.char.add(np.char.add(names, "-"), rows.astype(str))),
            "prompt": messages("user", words[:, :ASKED], texts),
            **fixed,
            "completion": messages("assistant", words[:, ASKED:], texts),
        }
    )


def generate(folder: Path, rows: int) -> Counter[str]:
    """Write the shards and the evaluation; returns how many rows of each kind there are."""
    texts, planted = vocabulary(), Counter()
    (folder / "data").mkdir(parents=True)
    (folder / "evaluation").mkdir()
    for number, start in enumerate(range(0, rows, SHARD)):
        numbers = np.arange(start, min(start + SHARD, rows))
        parts = [table(part, texts) for part in np.array_split(numbers, max(1, len(numbers) // 50_000))]
        path = folder / "data" / f"train-{number:05d}-of-{-(-rows // SHARD):05d}.parquet"
        pq.write_table(pa.concat_tables(parts), path, row_group_size=50_000)
        planted.update(
            dict(zip(["original", *KINDS], np.bincount(kinds_of(numbers), minlength=5).tolist(), strict=True))
        )
    problems = FIRST_PROBLEM + np.arange(PROBLEMS)
    evaluation = table(np.arange(PROBLEMS), texts).drop_columns("completion")
    asked = messages("user", words_of(problems, PROBLEM_WORDS), texts)
    pq.write_table(evaluation.set_column(1, "prompt", asked), folder / "evaluation" / "rows.parquet")
    return planted


def child(folder: Path, threads: int) -> None:
    """Curate in this process; prints a line of JSON."""
    from schemas.stages.curate import Curate
    from tasks.context import Context
    from tasks.curate import run

    stage = Curate(kind="curate", data="rows", fuzzy_dedup={}, decontaminate={"against_prompts": ["evaluation"]})
    inputs = {"data": folder / "data", "decontaminate.against_prompts.0": folder / "evaluation"}
    (folder / "step").mkdir()
    began = time.perf_counter()
    result = run(stage, Context(inputs, folder / "step", folder / "checkpoints", seed=0, num_threads=threads))
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    usage = {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_kb": used.ru_maxrss}
    print(json.dumps({**usage, "metrics": result.metrics}))


def spawn(folder: Path, threads: int) -> dict[str, Any]:
    """`child` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--child", "--threads", str(threads), "--folder", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"curate failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def quality(folder: Path, planted: Counter[str]) -> dict[str, dict[str, float]]:
    """Recall and precision of each filter, by the kinds that the ids of dropped rows tell."""
    dropped: Counter[tuple[str, str]] = Counter()
    file = pq.ParquetFile(folder / "step/outputs/report/dropped.parquet")
    for batch in file.iter_batches(columns=["id", "reason"]):
        kinds = [name.partition("-")[0] for name in batch.column("id").to_pylist()]
        dropped.update(zip(kinds, batch.column("reason").to_pylist(), strict=True))
    quality_by_kind = {}
    for kind, reasons in REASONS.items():
        right = sum(dropped[kind, reason] for reason in reasons)
        wrong = sum(
            n for (other, reason), n in dropped.items() if reason in reasons and other not in COPIES.get(kind, {kind})
        )
        recall, precision = right / max(planted[kind], 1), right / max(right + wrong, 1)
        quality_by_kind[kind] = {"planted": planted[kind], "found": right, "recall": recall, "precision": precision}
    return quality_by_kind


def curate(folder: Path, rows: int, threads: int) -> dict[str, Any]:
    """Make the rows, curate them, compare."""
    began = time.perf_counter()
    planted = generate(folder, rows)
    made_in = time.perf_counter() - began
    size = sum(path.stat().st_size for path in (folder / "data").iterdir())
    measured = spawn(folder, threads)
    return {
        "rows": rows,
        "threads": threads,
        "seconds": round(measured["seconds"], 1),
        "cpu_seconds": round(measured["cpu_seconds"], 1),
        "rows_per_second": round(rows / measured["seconds"]),
        "peak_mb": round(measured["peak_kb"] / 1024),
        "kept": measured["metrics"]["kept"],
        **quality(folder, planted),
        "shards_mb": round(size / 2**20),
        "seconds_to_generate": round(made_in, 1),
        "load": os.getloadavg()[0],
    }


def datasketch_drops(texts: list[str], threshold: float, num_perm: int, ngram: int) -> list[int]:
    """Rows that go, by datasketch: each row against the index of those that stayed."""
    from datasketch import MinHash, MinHashLSH

    from learning.curation.duplicates import choose_bands
    from learning.curation.minhash import normalise_text

    blank = MinHash(num_perm=num_perm, seed=1, hashfunc=zlib.crc32)
    index = MinHashLSH(num_perm=num_perm, params=choose_bands(threshold, num_perm))
    stayed: dict[int, MinHash] = {}
    gone = []
    for row, text in enumerate(texts):
        sketch = blank.copy()
        plain = normalise_text(text)
        sketch.update_batch(sorted({plain[i : i + ngram].encode() for i in range(max(1, len(plain) - ngram + 1))}))
        if any(sketch.jaccard(stayed[other]) >= threshold for other in index.query(sketch)):
            gone.append(row)
            continue
        index.insert(row, sketch)
        stayed[row] = sketch
    return gone


def compare(folder: Path, rows: int, threads: int) -> dict[str, Any]:
    """Near-duplicates by both sides, on the same rows."""
    from learning.curation.duplicates import drop_near_duplicates, join_texts
    from learning.curation.ledger import open_curation

    generate(folder, rows)
    settings = {"threshold": 0.9, "num_perm": 128, "ngram": 5}
    with open_curation(folder / "data", spill=folder, num_threads=threads, memory_limit="2GiB") as opened:
        texts = [text for block in opened.blocks() for text in join_texts(block, "chat")]
        began = time.perf_counter()
        drop_near_duplicates(opened, **settings, seed=0)
        ours = time.perf_counter() - began
        gone = [row for (row,) in opened.run("select row from dropped order by row")]
    began = time.perf_counter()
    peers = datasketch_drops(texts, **settings)
    theirs = time.perf_counter() - began
    return {
        "near_duplicates_of": rows,
        "same_rows": gone == peers,
        "ours_seconds": round(ours, 2),
        "datasketch_seconds": round(theirs, 2),
        "ratio": round(theirs / ours, 1),
    }


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-rows", type=int, default=20_000, help="0: no comparison")
    parser.add_argument("--folder", type=Path, help="where to put the rows; a new folder is made in it and removed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.folder, options.threads)
        return
    scratch = Path(tempfile.mkdtemp(prefix="curate-scale-", dir=options.folder))
    try:
        print(json.dumps(curate(scratch / "run", options.rows, options.threads)), flush=True)
        if options.peer_rows:
            print(json.dumps(compare(scratch / "peer", options.peer_rows, options.threads)), flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
