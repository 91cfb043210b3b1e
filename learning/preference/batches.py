"""Preference pairs as token ids: encoding, the split by prompt, and groups that fit into one forward.

Pairs that fit into memory stay there; of more, the ids are kept on disk and read when their turn comes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from learning.data.chat import encode_answer
from learning.data.held_out import split_rows
from learning.data.rows import Row, count_rows, fits_in_memory, read_rows, scan_rows
from learning.data.stored_rows import RowSubset, StoredRows, iterate_rows, store_rows

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
    """JSON text of the stage that made the pair."""

    @property
    def size(self) -> int:
        """Tokens when the prompt is stored once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


def read_pairs(
    tokenizer: PreTrainedTokenizerBase, data: Path, max_length: int, folder: Path
) -> tuple[Sequence[Pair], int]:
    """Return the pairs that fit, and the number that do not; ids that do not fit into memory are kept in `folder`."""
    if fits_in_memory(data):
        rows = read_rows(data, "preference_pairs")
        pairs = encode_pairs(tokenizer, rows, max_length)
        return pairs, len(rows) - len(pairs)

    def encode(row: Row) -> Row | None:
        pairs = encode_pairs(tokenizer, [row], max_length)
        return asdict(pairs[0]) | {"size": pairs[0].size} if pairs else None

    def make(row: Row) -> Pair:
        del row["size"]
        return Pair(**row)

    def source(start: int) -> Iterator[Row]:
        return iterate_rows(scan_rows(data, "preference_pairs", start=start))

    count = count_rows(data, "preference_pairs")
    stored = store_rows(folder, SCHEMA, count, source, encode, make)
    return stored, count - len(stored)


def encode_pairs(tokenizer: PreTrainedTokenizerBase, rows: list[Row], max_length: int) -> list[Pair]:
    """Return the rows of which both sides fit into `max_length` tokens with their prompt."""
    pairs = []
    for row in rows:
        (prompt, chosen), (_, rejected) = (
            encode_answer(tokenizer, row["prompt"], row[side], row) for side in ("chosen", "rejected")
        )
        if len(prompt) + max(len(chosen), len(rejected)) <= max_length:
            pairs.append(Pair(row["id"], prompt, chosen, rejected, row["margin"], row["metadata"]))
    return pairs


def count_tokens(pairs: Sequence[Pair]) -> list[int]:
    """Return tokens of each pair."""
    if isinstance(pairs, RowSubset) and isinstance(pairs.rows, StoredRows):
        return pairs.rows.column("size")[pairs.numbers].tolist()
    return pairs.column("size").tolist() if isinstance(pairs, StoredRows) else [pair.size for pair in pairs]


def split_by_prompt(pairs: Sequence[Pair], fraction: float) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """Return pairs to train on, and held-out pairs: those of the prompts whose hash is among the smallest `fraction`.

    A prompt lies wholly on one side, whatever the seed; at least one prompt is on each. Raises StepError when there
    are not two prompts.
    """
    return split_rows(pairs, (pair.prompt for pair in pairs), fraction)


def group_by_tokens(pairs: Iterable[Pair], max_tokens: int) -> list[list[Pair]]:
    """Return consecutive pairs in groups of at most `max_tokens` tokens (a longer pair is alone)."""
    return list(iterate_groups(pairs, max_tokens))


def iterate_groups(pairs: Iterable[Pair], max_tokens: int) -> Iterator[list[Pair]]:
    """Yield the groups of `by_tokens`, one after the other."""
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
