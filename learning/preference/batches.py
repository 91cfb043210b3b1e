"""Preference pairs as token ids: encoding, the split by prompt, and groups that fit into one forward.

Pairs that fit into memory stay there; of more, the ids are kept on disk and read when their turn comes.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from learning.data.chat import encode_completion, encode_prompt
from learning.data.rows import count_rows, fits, read_rows, scan_rows
from learning.data.stored_rows import Some, Stored, one_by_one, store
from schemas.errors import StepError

TOKENS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("prompt", TOKENS),
        ("chosen", TOKENS),
        ("rejected", TOKENS),
        ("margin", pa.float64()),
        ("metadata", pa.string()),
        ("size", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Pair:
    """One prompt with a chosen and a rejected completion, as token ids; `margin` is None where the row has none."""

    id: str
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]
    margin: float | None
    metadata: str | None = None
    """JSON text of whoever made the pair."""

    @property
    def size(self) -> int:
        """Tokens when the prompt is stored once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


def read_pairs(
    tokenizer: PreTrainedTokenizerBase, data: Path, max_length: int, folder: Path
) -> tuple[Sequence[Pair], int]:
    """The pairs of an artifact that fit, and how many do not; of too many for memory the ids are kept in `folder`."""
    if fits(data):
        rows = read_rows(data, "preference_pairs")
        pairs = encode_pairs(tokenizer, rows, max_length)
        return pairs, len(rows) - len(pairs)

    def encode(row: dict[str, Any]) -> dict[str, Any] | None:
        pairs = encode_pairs(tokenizer, [row], max_length)
        return asdict(pairs[0]) | {"size": pairs[0].size} if pairs else None

    def make(row: dict[str, Any]) -> Pair:
        del row["size"]
        return Pair(**row)

    def source(start: int) -> Iterator[dict[str, Any]]:
        return one_by_one(scan_rows(data, "preference_pairs", start=start))

    count = count_rows(data, "preference_pairs")
    kept = store(folder, SCHEMA, count, source, encode, make)
    return kept, count - len(kept)


def encode_pairs(tokenizer: PreTrainedTokenizerBase, rows: list[dict[str, Any]], max_length: int) -> list[Pair]:
    """The rows of which both sides fit into `max_length` tokens with their prompt."""
    pairs = []
    for row in rows:
        prompt = encode_prompt(tokenizer, row["prompt"])
        chosen, rejected = (encode_completion(tokenizer, row[side]) for side in ("chosen", "rejected"))
        if len(prompt) + max(len(chosen), len(rejected)) <= max_length:
            pairs.append(Pair(row["id"], prompt, chosen, rejected, row["margin"], row["metadata"]))
    return pairs


def sizes_of(pairs: Sequence[Pair]) -> list[int]:
    """Tokens of each pair."""
    if isinstance(pairs, Some) and isinstance(pairs.rows, Stored):
        return pairs.rows.column("size")[pairs.numbers].tolist()
    return pairs.column("size").tolist() if isinstance(pairs, Stored) else [pair.size for pair in pairs]


def split_by_prompt(pairs: Sequence[Pair], fraction: float) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """Pairs to train on, and held-out pairs: those of the prompts whose hash is among the smallest `fraction`.

    A prompt lies wholly on one side, whatever the seed; at least one prompt is on each. Raises StepError when there
    are not two prompts.
    """
    hashes = [hashlib.sha256(json.dumps(pair.prompt).encode()).digest() for pair in pairs]
    order = sorted(set(hashes))
    if len(order) < 2:
        raise StepError(
            f"data: {len(order)} distinct prompt(s) among the pairs that fit, at least 2 are needed to hold one out; "
            "give more data or raise max_length"
        )
    number = min(max(1, round(fraction * len(order))), len(order) - 1)
    last = order[number - 1]
    train = Some(pairs, [i for i, found in enumerate(hashes) if found > last])
    held_out = Some(pairs, [i for i, found in enumerate(hashes) if found <= last])
    return (train, held_out) if isinstance(pairs, Stored) else (list(train), list(held_out))


def by_tokens(pairs: Iterable[Pair], max_tokens: int) -> list[list[Pair]]:
    """Consecutive pairs in groups of at most `max_tokens` tokens (a longer pair is alone)."""
    return list(micro_batches(pairs, max_tokens))


def micro_batches(pairs: Iterable[Pair], max_tokens: int) -> Iterator[list[Pair]]:
    """The groups of `by_tokens`, one after the other."""
    group: list[Pair] = []
    size = 0
    for pair in pairs:
        if group and size + pair.size > max_tokens:
            yield group
            group, size = [], 0
        group.append(pair)
        size += pair.size
    if group:
        yield group
