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

from learning.data.held_out import hash_prompt
from learning.data.long_rows import LongRows, list_parts
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
        ("row_length", pa.int32()),
        ("unknown", pa.int32()),
        ("row", pa.string()),
        ("source", pa.string()),
        ("whole_prompt", pa.binary()),
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
    whole_prompt: bytes = field(default=b"", compare=False)
    """Hash of the prompt of the row that this is a part of; empty for a whole row."""

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

    @property
    def prompt_hash(self) -> bytes:
        """Return the hash by which rows are held out: that of the row's prompt, or of a text without one."""
        return self.whole_prompt or hash_prompt(self.ids[: self.num_given] or self.ids)


@dataclass(frozen=True)
class Examples:
    """What is trained on, and what was seen on the way: long rows, and tokens that the tokenizer does not know."""

    kept: Sequence[Example]
    dropped: int
    """Rows that are left out: over the limit, and dropped or without a learned token in the part that is kept."""
    unknown: int
    cut: int
    """Rows over the limit of which a part or several are trained on."""
    row_lengths: np.ndarray
    """Tokens of every row before anything was cut, also of those that are left out."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row that is kept."""
        if isinstance(self.kept, RowSubset) and isinstance(self.kept.rows, StoredRows):
            return self.kept.rows.column("length")[self.kept.numbers].astype(np.int64)
        if isinstance(self.kept, StoredRows):
            return self.kept.column("length").astype(np.int64)
        return np.array([len(example.ids) for example in self.kept], np.int64)


def read_examples(
    tokenizer: PreTrainedTokenizerBase,
    data: Path,
    max_length: int,
    folder: Path,
    train_on: TrainOn = "last",
    long_rows: LongRows = "drop",
) -> Examples:
    """Return the encoded chat rows of an artifact; ids that do not fit into memory are kept in `folder`.

    A killed step finds there what it had encoded.
    """
    if fits_in_memory(data):
        return encode_rows(tokenizer, read_rows(data, "chat"), max_length, train_on, long_rows)

    def encode(row: Row) -> list[Row]:
        example = encode_row(tokenizer, row, train_on)
        parts = cut_example(example, max_length, long_rows)
        length = len(example.ids)
        # What is left out is stored without ids, so that a resumed step knows its length.
        return [_store(tokenizer, part, 0 if i else length) for i, part in enumerate(parts)] or [
            _store(tokenizer, Example([], 0, example.row), length)
        ]

    def source(start: int) -> Any:
        return iterate_rows(scan_rows(data, "chat", start=start))

    count = count_rows(data, "chat")
    stored = store_rows(folder, SCHEMA, count, source, encode, _load)
    lengths, row_lengths = stored.column("length"), stored.column("row_length")
    row_lengths_N = row_lengths[row_lengths > 0].astype(np.int64)
    if not lengths.any():
        raise _make_empty_error(row_lengths_N, max_length)
    kept = stored if lengths.all() else RowSubset(stored, np.flatnonzero(lengths))
    dropped = int((lengths == 0).sum())
    cut = int((row_lengths_N > max_length).sum()) - dropped
    return Examples(kept, dropped, int(stored.column("unknown").sum()), cut, row_lengths_N)


def _store(tokenizer: PreTrainedTokenizerBase, example: Example, row_length: int) -> Row:
    """Return an example as it is kept on disk; only the first part of a row has the length of the row."""
    unknown = _count_unknown(tokenizer, [example])
    return {**vars(example), "length": len(example.ids), "row_length": row_length, "unknown": unknown}


def _load(row: Row) -> Example:
    skipped = tuple(row["skipped"])
    return Example(row["ids"], row["num_given"], row["row"], row["source"], skipped, row["whole_prompt"])


def cut_example(example: Example, max_length: int, long_rows: LongRows) -> list[Example]:
    """Return the example if it has at most `max_length` tokens, else the parts of it that are trained on."""
    if len(example.ids) <= max_length:
        return [example]
    learned = example.learned
    return [
        _make_example(example.ids[start:end], learned[start:end], example.row, example.source, example.prompt_hash)
        for start, end in list_parts(learned, max_length, long_rows)
    ]


def _make_example(ids: list[int], learned: list[bool], row: str, source: str, whole_prompt: bytes = b"") -> Example:
    # Borders between what is learned and what is not; the end counts as learned, so that they come in pairs.
    given, *skipped = [i for i, (a, b) in enumerate(pairwise([False, *learned, True])) if a != b]
    return Example(ids, given, row, source, tuple(skipped), whole_prompt)


def encode_row(tokenizer: PreTrainedTokenizerBase, row: Row, train_on: TrainOn = "last") -> Example:
    """Return one chat row as ids, with what `train_on` selects as learned; of plain text, all tokens are learned."""
    if row["completion"][0]["role"] == PLAIN:
        ids = encode_plain(tokenizer, row["completion"][0]["content"])
        return Example(ids, 0, row.get("id", ""), row.get("source", ""))
    made = encode_conversation(tokenizer, row["prompt"], row["completion"], train_on=train_on, row=row)
    return _make_example(made.ids, made.learned, row.get("id", ""), row.get("source", ""))


def encode_plain(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text with the special tokens that the tokenizer puts around one, and the end of sequence.

    Text that looks like a special token stays text.
    """
    ids = cast(list[int], tokenizer.encode(text, split_special_tokens=True))
    end = require_eos(tokenizer)
    return ids if ids[-1:] == [end] else [*ids, end]


def encode_rows(
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    max_length: int,
    train_on: TrainOn = "last",
    long_rows: LongRows = "drop",
) -> Examples:
    """Encode chat rows; of those over `max_length` tokens, what `long_rows` says. Raise StepError if none is left."""
    examples = [encode_row(tokenizer, row, train_on) for row in rows]
    row_lengths_N = np.array([len(example.ids) for example in examples], np.int64)
    parts = [cut_example(example, max_length, long_rows) for example in examples]
    kept = [part for own in parts for part in own]
    if not kept:
        raise _make_empty_error(row_lengths_N, max_length)
    dropped = sum(not own for own in parts)
    cut = int((row_lengths_N > max_length).sum()) - dropped
    return Examples(kept, dropped, _count_unknown(tokenizer, kept), cut, row_lengths_N)


def _count_unknown(tokenizer: PreTrainedTokenizerBase, examples: Sequence[Example]) -> int:
    """Return tokens that the tokenizer does not know."""
    token = cast(int | None, tokenizer.unk_token_id)
    return 0 if token is None else sum(example.ids.count(token) for example in examples)


def _make_empty_error(row_lengths_N: np.ndarray, max_length: int) -> StepError:
    if not len(row_lengths_N):
        return StepError("data: no rows to train on; look at what the stage before dropped")
    return StepError(
        f"data: all {len(row_lengths_N)} rows are longer than {max_length} tokens (the shortest has "
        f"{row_lengths_N.min()}); raise max_length here and in the model's init stage, or set "
        "`long_rows: truncate` or `split`"
    )
