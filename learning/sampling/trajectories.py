"""Trajectories of an RL stage as Parquet: one row per completion, trained on or not.

Rows wait in memory and are written with every checkpoint: a resumed run writes the same file, byte for byte.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from learning.batch.batch import Batch
from learning.data.rows_used import Used, sum_tallies
from learning.data.shards import ShardWriter, scan_shards
from learning.samples.sample import Row, Sample
from schemas.errors import StepError
from schemas.sealed import NotSealed, file_digest, read_sealed, write_sealed

Parts = list[tuple[int, str]]
"""Steps at which rows were written next to a checkpoint, each with the digest of the file."""
FILE = "trajectories.parquet"
"""The name of a small table; a large one is several files."""
SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int32()),
        ("sample", pa.int32()),
        ("prompt_id", pa.string()),
        ("family", pa.string()),
        ("source", pa.string()),
        ("version", pa.int32()),
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
"""`version` is the oldest iteration whose weights sampled a token; tokens are those sampled, not given ones."""
TURN = pa.struct(
    [
        ("sampled", pa.int32()),
        ("observed", pa.int32()),
        ("rebuilt", pa.bool_()),
        ("asks", pa.string()),
        ("text", pa.string()),
        ("observation", pa.string()),
        ("reward", pa.float64()),
        ("seconds", pa.float64()),
        ("ok", pa.bool_()),
    ]
)
"""A turn of the model that an environment answered, in the order of the tokens; `seconds` null: those of a real clock,
on which no two runs agree."""
EPISODES = pa.schema([*SCHEMA, ("turns", pa.list_(TURN))])
"""Of a stage with an environment; `completion` is then the whole episode, and `token_ids` hold what was observed."""
KEPT = pa.field("kept", pa.list_(pa.string()))
"""Column of a stage with `kept_tokens`: the record of the tokens that each one was sampled from."""


class Trajectories:
    """The rows of a stage so far; `share` is the part of the groups that is kept.

    `decode` gives the text of tokens, for a stage whose completions are episodes; None: they are single turns. `kept`
    is whether rows have the tokens that were sampled from.
    """

    def __init__(
        self,
        folder: Path,
        share: float,
        seed: int,
        decode: Callable[[list[int]], str] | None = None,
        *,
        kept: bool = False,
    ):
        self.folder, self.share, self.seed, self.decode, self.kept = folder, share, seed, decode, kept
        schema = SCHEMA if decode is None else EPISODES
        self.schema = schema.append(KEPT) if kept else schema
        self.waiting: list[Row] = []
        self.tally: dict[str, tuple[int, int]] = {}
        """Of each prompt since the last checkpoint: completions sampled, and those with an advantage."""

    def add(self, step: int, samples: Sequence[Sample], advantages: Sequence[float | None]) -> None:
        """Add the samples of a step; the advantage of each, None where it was not trained on."""
        groups = {g for g in {t.group for t in samples} if self._keeps(step, g)}
        stored: dict[int, int] = {}
        for sample, advantage in zip(samples, advantages, strict=True):
            number = stored[sample.group] = stored.get(sample.group, -1) + 1
            sampled, trained = self.tally.get(sample.row["id"], (0, 0))
            self.tally[sample.row["id"]] = (sampled + 1, trained + bool(advantage))
            if sample.group in groups:
                place = {"step": step, "group": sample.group, "sample": number}
                self.waiting.append({**place, **self._row(sample, advantage)})

    def write_part(self, step: int) -> str:
        """Write the waiting rows next to the checkpoint of `step`, before it is written; return their digest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(self.waiting, schema=self.schema), self._part(step), compression="zstd")
        write_sealed(self._tally(step), self._label(step), self.tally)
        self.waiting, self.tally = [], {}
        return file_digest(self._part(step))

    def used(self, parts: Parts) -> Iterator[Used]:
        """Return how often each prompt was sampled and trained on, whatever share of the trajectories is kept.

        Raises StepError when the counts next to a checkpoint are not as they were written.
        """
        try:
            counts = [self._counts(step) for step, _ in parts]
        except (NotSealed, OSError) as error:
            raise StepError(f"{error}; run again: the step continues from an earlier checkpoint") from error
        return sum_tallies([*counts, self.tally])

    def damaged(self, parts: Parts) -> str | None:
        """Return what is wrong with the rows next to the checkpoints; None when they are as they were written."""
        for step, written in parts:
            part = self._part(step)
            if part.is_symlink() or not part.is_file() or file_digest(part) != written:
                return f"{part.name} of the trajectories is not as it was written"
            try:
                self._counts(step)
            except (NotSealed, OSError) as error:
                return str(error)
        return None

    def _counts(self, step: int) -> dict[str, tuple[int, int]]:
        """Return the counts next to a checkpoint. Raises NotSealed, and OSError where there are none."""
        return read_sealed(self._tally(step), self._label(step))

    @staticmethod
    def _label(step: int) -> str:
        return f"rows used until {step}"

    def publish(self, output: Path, parts: Parts) -> None:
        """Write the rows next to the checkpoints and the waiting ones as one table; equal rows give equal bytes.

        Raises StepError when the former are not as they were written.
        """
        if (problem := self.damaged(parts)) is not None:
            raise StepError(f"{problem}; run again: the step continues from an earlier checkpoint")
        with ShardWriter(output, self.schema, "trajectories") as writer:
            for batch in scan_shards([self._part(step) for step, _ in parts], self.schema, "trajectories"):
                writer.write(batch)
            writer.write(pa.Table.from_pylist(self.waiting, schema=self.schema))

    def _row(self, sample: Sample, advantage: float | None) -> Row:
        row = _row(sample, advantage) | ({"kept": sample.kept[sample.given :]} if self.kept else {})
        if self.decode is None:
            return row
        turns, at = [], sample.given
        for turn in sample.turns:
            end_of_text = at + turn.sampled
            end = end_of_text + turn.observed
            texts = {"text": (at, end_of_text), "observation": (end_of_text, end)}
            own = {name: self.decode(sample.completion_ids[a:b]) for name, (a, b) in texts.items()}
            turns.append({**asdict(turn), **own, "seconds": None if turn.measured else turn.seconds})
            at = end
        return {**row, "completion": self.decode(sample.completion_ids), "turns": turns}

    def _part(self, step: int) -> Path:
        return self.folder / f"rows-{step:08d}.parquet"

    def _tally(self, step: int) -> Path:
        return self.folder / f"used-{step:08d}.json"

    def _keeps(self, step: int, group: int) -> bool:
        return self.share >= 1 or np.random.default_rng([self.seed, step, group]).random() < self.share


def path_advantages(trained: Batch) -> dict[int, float]:
    """Return the mean advantage over the tokens of each path, by the path's id."""
    if not trained.num_paths:
        return {}
    path_T, values_T = trained.path_T, trained.sampled("advantage")
    counts = path_T.bincount(minlength=trained.num_paths).clamp(min=1)
    means = values_T.new_zeros(trained.num_paths).index_add(0, path_T, values_T) / counts
    return dict(zip(trained.paths["path"].tolist(), means.tolist(), strict=True))


def status(sample: Sample) -> str:
    """`done`, `truncated` (hit the length limit), `suspended` or `unscorable` (a reward could not judge it)."""
    if sample.reward is None:
        return "unscorable"
    return {"stop": "done", "length": "truncated", "suspended": "suspended"}[sample.finish]


def _row(sample: Sample, advantage: float | None) -> Row:
    cut = sample.given
    return {
        "prompt_id": sample.row["id"],
        "family": sample.row["family"],
        "source": sample.source,
        "version": min(sample.versions, default=None),
        "completion": sample.text,
        "token_ids": sample.completion_ids[cut:],
        "logprobs": None if sample.logprobs is None else sample.logprobs[cut:],
        "scores": list(sample.scores.items()),
        "reward": sample.reward,
        "advantage": advantage,
        "status": status(sample),
        "trained": advantage is not None,
    }
