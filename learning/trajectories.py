"""What an RL stage sampled, as Parquet: one row per completion, trained on or not.

Rows wait in memory and are put aside with every checkpoint: a continued run writes the same file, byte for byte.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from learning.batch import Batch
from learning.rollout import raw_scores

FILE = "trajectories.parquet"
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),
        ("sample", pa.int32()),
        ("prompt_id", pa.string()),
        ("family", pa.string()),
        ("completion", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("scores", pa.map_(pa.string(), pa.float64())),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("status", pa.string()),
        ("trained", pa.bool_()),
    ]
)


class Trajectories:
    """The rows of a stage so far; `share` is the part of the groups that is kept."""

    def __init__(self, folder: Path, share: float, seed: int):
        self.folder, self.share, self.seed = folder, share, seed
        self.waiting: list[dict[str, Any]] = []

    def add(self, step: int, batch: Batch, trained: Batch, rows: list[dict[str, Any]], texts: list[str]) -> None:
        """Add the completions of a step. `trained` are the paths that were trained on, with their advantages."""
        advantages = dict(zip(trained.paths["path"].tolist(), path_advantages(trained), strict=True))
        kept = {g for g in set(batch.paths["group"].tolist()) if self._keeps(step, g)}
        seen: dict[int, int] = {}
        for path, group in enumerate(batch.paths["group"].tolist()):
            sample = seen[group] = seen.get(group, -1) + 1
            if group in kept:
                row = _row(batch, path, rows[path], texts[path], advantages.get(int(batch.paths["path"][path])))
                self.waiting.append({"step": step, "group": group, "sample": sample, **row})

    def put_aside(self, step: int) -> None:
        """Write the waiting rows beside the checkpoint of `step`, before it is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self.waiting, schema=SCHEMA), self._part(step), compression="zstd")
        self.waiting = []

    def publish(self, output: Path, parts: list[int]) -> None:
        """Write the rows put aside at `parts` and the waiting ones as one file; equal rows give equal bytes."""
        tables = [pq.read_table(self._part(step)).cast(SCHEMA) for step in parts]
        tables.append(pa.Table.from_pylist(self.waiting, schema=SCHEMA))
        pq.write_table(pa.concat_tables(tables).combine_chunks(), output / FILE, compression="zstd")

    def _part(self, step: int) -> Path:
        return self.folder / f"rows-{step:08d}.parquet"

    def _keeps(self, step: int, group: int) -> bool:
        return self.share >= 1 or np.random.default_rng([self.seed, step, group]).random() < self.share


def path_advantages(trained: Batch) -> list[float]:
    """Mean advantage over the tokens of each path."""
    if not trained.num_paths:
        return []
    path_T, values_T = trained.path_T, trained.sampled("advantage")
    counts = path_T.bincount(minlength=trained.num_paths).clamp(min=1)
    return (values_T.new_zeros(trained.num_paths).index_add(0, path_T, values_T) / counts).tolist()


def status(batch: Batch, path: int) -> str:
    """`done`, `truncated` (hit the length limit) or `unscorable` (a reward could not judge it)."""
    if not batch.paths["scorable"][path]:
        return "unscorable"
    return "truncated" if batch.paths["truncated"][path] else "done"


def _row(batch: Batch, path: int, prompt: dict[str, Any], text: str, advantage: float | None) -> dict[str, Any]:
    mine = batch.sampled_T[batch.path_T == path]
    scores = {name: float(value_P[path]) for name, value_P in raw_scores(batch).items()}
    scorable = bool(batch.paths["scorable"][path])
    return {
        "prompt_id": prompt["id"],
        "family": prompt["family"],
        "completion": text,
        "token_ids": batch.packed.input_ids_M[mine].tolist(),
        "logprobs": batch.tokens["lp_behav"][mine].tolist(),
        "scores": [(name, None if math.isnan(value) else value) for name, value in scores.items()],
        "reward": float(batch.paths["reward"][path]) if scorable else None,
        "advantage": advantage,
        "status": status(batch, path),
        "trained": advantage is not None,
    }
