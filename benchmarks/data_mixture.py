"""Convert and mix millions of rows of three formats, and measure memory and time; prints one line of JSON.

    python benchmarks/data_mixture.py --rows 1000000 [--curriculum]

`--rows` are those of each of the three sources: messages (JSON Lines), Alpaca (CSV), prompt and completion (Parquet).
Peak memory is of the whole process; a second run with another number of rows shows what grows with them.
With `--curriculum` the first source is in the first half of the mixture only, whose rows then have an order.
"""

import argparse
import csv
import json
import resource
import tempfile
import time
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from learning.data.rows import count_rows
from schemas.stages.data import Data
from tasks.context import Context
from tasks.data import run

PIECE = 10_000


def write_sources(folder, rows):
    texts = [" ".join(f"word{(i * 7919 + j * 104729) % 5000}" for j in range(18)) for i in range(1000)]
    for name in ("chats", "alpaca", "pairs"):
        (folder / name).mkdir()
    with (folder / "chats/chats.jsonl").open("w") as file:
        for i in range(rows):
            messages = [
                {"role": "user", "content": f"{i} {texts[i % 1000]}"},
                {"role": "assistant", "content": texts[-i % 1000]},
            ]
            file.write(json.dumps({"id": f"c{i}", "messages": messages}) + "\n")
    with (folder / "alpaca/alpaca.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["instruction", "input", "output"])
        writer.writerows([f"{i} {texts[i % 1000]}", "", texts[-i % 1000]] for i in range(rows))
    schema = pa.schema([("prompt", pa.string()), ("completion", pa.string())])
    numbers = iter(range(rows))
    with pq.ParquetWriter(folder / "pairs/pairs.parquet", schema) as writer:
        while piece := list(islice(numbers, PIECE)):
            columns = [[f"{i} {texts[i % 1000]}" for i in piece], [texts[-i % 1000] for i in piece]]
            writer.write_table(pa.table(columns, schema=schema))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--curriculum", action="store_true")
    given = parser.parse_args()
    rows = given.rows
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_sources(folder, rows)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        names = ("chats", "alpaca", "pairs")
        sources = [{"from": f"path:{name}", "weight": w} for name, w in zip(names, (5, 3, 2), strict=True)]
        if given.curriculum:
            sources[0]["during"] = [0, 0.5]
        (folder / "work").mkdir()
        inputs = {f"sources.{i}.from": folder / name for i, name in enumerate(names)}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, cpu = time.perf_counter(), time.process_time()
        stage = Data.model_validate({"kind": "data", "sources": sources})
        result = run(stage, Context(inputs, folder / "work", folder / "checkpoints", seed=0))
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - started
        mixed = count_rows(folder / "work/outputs/data", "chat")
        assert (result.metrics["rows"], result.metrics["kept"], mixed) == (3 * rows, 3 * rows, result.metrics["mixed"])
        print(
            json.dumps(
                {
                    "curriculum": given.curriculum,
                    "rows_read": 3 * rows,
                    "rows_mixed": mixed,
                    "source_mb": round(size / 1e6),
                    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                    "peak_before_mb": round(before / 1024),
                    "cpu_seconds": round(cpu, 1),
                    "cpu_us_per_row": round(cpu / rows / 3 * 1e6, 1),
                    "wall_seconds": round(seconds, 1),
                }
            )
        )


if __name__ == "__main__":
    main()
