"""Rows held out of training: chosen by a hash of their prompt, so that a prompt lies wholly on one side."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TypeVar

from learning.data.stored_rows import RowSubset, StoredRows
from schemas.errors import StepError

Row = TypeVar("Row")


def hash_prompt(prompt: Sequence[int]) -> bytes:
    """Return the hash of a prompt's token ids, by which its rows are held out or trained on."""
    return hashlib.sha256(json.dumps(list(prompt)).encode()).digest()


def split_rows(rows: Sequence[Row], prompts: Iterable[bytes], fraction: float) -> tuple[Sequence[Row], Sequence[Row]]:
    """Return rows to train on, and held-out rows: those whose prompt's hash is among the smallest `fraction`.

    `prompts` are the hashes of the rows' prompts. The split does not depend on a seed; at least one prompt is on each
    side. Raise StepError if there are not two prompts.
    """
    hashes = list(prompts)
    order = sorted(set(hashes))
    if len(order) < 2:
        raise StepError(
            f"data: {len(order)} distinct prompt(s) among the rows that fit, at least 2 are needed to hold one out; "
            "give more data or raise max_length"
        )
    number = min(max(1, round(fraction * len(order))), len(order) - 1)
    last = order[number - 1]
    train = RowSubset(rows, [i for i, value in enumerate(hashes) if value > last])
    held_out = RowSubset(rows, [i for i, value in enumerate(hashes) if value <= last])
    if isinstance(rows, RowSubset) and isinstance(rows.rows, StoredRows):
        return RowSubset(rows.rows, rows.numbers[train.numbers]), RowSubset(rows.rows, rows.numbers[held_out.numbers])
    return (train, held_out) if isinstance(rows, StoredRows) else (list(train), list(held_out))
