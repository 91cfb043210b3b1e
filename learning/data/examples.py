"""Rows of conversations as token ids, with the border between what is given and what is learned.

Rows that fit into memory stay there; of more, the ids are kept on disk and read when their turn comes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from transformers import PreTrainedTokenizerBase

from learning.data.messages import PLAIN
from learning.data.rows import Row, count_rows, fits_in_memory, read_rows, scan_rows
from learning.data.stored_rows import RowSubset, StoredRows, iterate_rows, store_rows
from learning.data.turns import TrainOn, encode_conversation, require_eos
from schemas.errors import StepError

SCHEMA = pa.schema(
    [
        ("ids", pa.list_(pa.int32())),
        ("num_given", pa.int32()),
        ("skipped", pa.list_(pa.int32())),
        ("length", pa.int32()),
        ("unknown", pa.int32()),
        ("row", pa.string()),
        ("source", pa.string()),
    ]
)


@dataclass(frozen=True)
class Example:
    """Ids of a conversation, and which of them are learned."""

    ids: list[int]
    num_given: int
    """Tokens before the first that is learned."""
    row: str = field(default="", compare=False)
    """Id of the row."""
    source: str = field(default="", compare=False)
    """Source of the row in a mixture; empty if it has none."""
    skipped: tuple[int, ...] = ()
    """Borders of later parts that are not learned: from `skipped[0]` to before `skipped[1]`, and so on."""

    @property
    def learned(self) -> list[bool]:
        """Return whether each token has a loss; the first token of a sequence has none, nothing predicts it."""
        given = max(self.num_given, 1)
        learned = [False] * given + [True] * (len(self.ids) - given)
        for start, end in zip(self.skipped[::2], self.skipped[1::2], strict=True):
            learned[start:end] = [False] * (end - start)
        return learned

    @property
    def num_learned(self) -> int:
        """Return the number of tokens with a loss."""
        skipped = sum(self.skipped[1::2]) - sum(self.skipped[::2])
        return len(self.ids) - max(self.num_given, 1) - skipped


@dataclass(frozen=True)
class Examples:
    """What is trained on, and what was seen on the way: rows too long, and tokens that the tokenizer does not know."""

    kept: Sequence[Example]
    dropped: int
    unknown: int

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row that is kept."""
        if isinstance(self.kept, RowSubset) and isinstance(self.kept.rows, StoredRows):
            return self.kept.rows.column("length")[self.kept.numbers].astype(np.int64)
        if isinstance(self.kept, StoredRows):
            return self.kept.column("length").astype(np.int64)
        return np.array([len(example.ids) for example in self.kept], np.int64)


def read_examples(
    tokenizer: PreTrainedTokenizerBase, data: Path, max_length: int, folder: Path, train_on: TrainOn = "last"
) -> Examples:
    """Return the encoded chat rows of an artifact; ids that do not fit into memory are kept in `folder`.

    A killed step finds there what it had encoded.
    """
    if fits_in_memory(data):
        return encode_rows(tokenizer, read_rows(data, "chat"), max_length, train_on)
    shortest = 0

    def encode(row: Row) -> Row | None:
        nonlocal shortest
        example = encode_row(tokenizer, row, train_on)
        length = len(example.ids)
        shortest = min(shortest or length, length)
        if length > max_length:
            return None
        unknown = _count_unknown(tokenizer, [example])
        same = {"ids": example.ids, "num_given": example.num_given, "skipped": example.skipped, "row": example.row}
        same["source"] = example.source
        return {**same, "length": length, "unknown": unknown}

    def source(start: int) -> Any:
        return iterate_rows(scan_rows(data, "chat", start=start))

    count = count_rows(data, "chat")
    kept = store_rows(
        folder,
        SCHEMA,
        count,
        source,
        encode,
        lambda row: Example(row["ids"], row["num_given"], row["row"], row["source"], tuple(row["skipped"])),
    )
    if not len(kept):
        raise _make_empty_error(count, shortest, max_length)
    return Examples(kept, count - len(kept), int(kept.column("unknown").sum()))


def encode_row(tokenizer: PreTrainedTokenizerBase, row: Row, train_on: TrainOn = "last") -> Example:
    """Return one chat row as ids, with what `train_on` selects as learned; of plain text, all tokens are learned."""
    if row["completion"][0]["role"] == PLAIN:
        ids = encode_plain(tokenizer, row["completion"][0]["content"])
        return Example(ids, 0, row.get("id", ""), row.get("source", ""))
    made = encode_conversation(tokenizer, row["prompt"], row["completion"], train_on=train_on, row=row)
    # Borders between what is learned and what is not; the end counts as learned, so that they come in pairs.
    given, *skipped = [i for i, (a, b) in enumerate(pairwise([False, *made.learned, True])) if a != b]
    return Example(made.ids, given, row.get("id", ""), row.get("source", ""), tuple(skipped))


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text with the special tokens that the tokenizer puts around one, and the end of sequence.

    Text that looks like a special token stays text.
    """
    ids = cast(list[int], tokenizer.encode(text, split_special_tokens=True))
    end = require_eos(tokenizer)
    return ids if ids[-1:] == [end] else [*ids, end]


def encode_rows(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], max_length: int, train_on: TrainOn = "last"
) -> Examples:
    """Encode chat rows; rows of more than `max_length` tokens are dropped. Raises StepError when none is left."""
    examples = [encode_row(tokenizer, row, train_on) for row in rows]
    kept = [example for example in examples if len(example.ids) <= max_length]
    if not kept:
        raise _make_empty_error(len(examples), min((len(example.ids) for example in examples), default=0), max_length)
    return Examples(kept, len(examples) - len(kept), _count_unknown(tokenizer, kept))


def _count_unknown(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]) -> int:
    """Return tokens that the tokenizer does not know."""
    token = cast(int | None, tokenizer.unk_token_id)
    return 0 if token is None else sum(example.ids.count(token) for example in examples)


def _make_empty_error(count: int, shortest: int, max_length: int) -> StepError:
    return StepError(
        f"data: all {count} rows are longer than {max_length} tokens (the shortest has {shortest}); "
        "raise max_length here and in the model's init stage"
        if count
        else "data: no rows to train on; look at what the stage before dropped"
    )
