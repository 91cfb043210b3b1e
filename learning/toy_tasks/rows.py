"""Rows of toy tasks: the options that their generators share, the split by hash, and the draws of distinct rows."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from learning.data.rows import Row
from schemas.errors import StepError

Size = Annotated[int, Field(ge=1)]
Split = Literal["train", "test"]
TestShare = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(ge=0, le=1)]
Item = TypeVar("Item")


def hash_text(text: str) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def is_in_split(digest: str, split: str, test_share: float) -> bool:
    """Return whether a hash is in a split: the test split has the hashes in the lowest `test_share` of all."""
    return (int(digest, 16) < test_share * 2**64) == (split == "test")


def make_row(family: str, text: str, answer: str | None, metadata: Mapping[str, Any], *, salt: str = "") -> Row:
    """Return the row of a problem with one message; its id is the hash of `salt` (default: the family) and the text."""
    return {
        "id": hash_text(f"{salt or family}\n{text}"),
        "prompt": [{"role": "user", "content": text}],
        "answer": answer,
        "family": family,
        "metadata": json.dumps(metadata),
    }


def draw_rows(
    draw: Callable[[dict[str, Row]], Row | None], size: int, draws: int, task: str, split: str, advice: str
) -> list[Row]:
    """Call `draw` until it has returned `size` rows with different ids; a later row replaces one with the same id.

    `draw` receives the rows so far by id, and returns None for a problem that is left out. Raise StepError after
    `draws` calls.
    """
    rows: dict[str, Row] = {}
    for _ in range(draws):
        row = draw(rows)
        if row is not None:
            rows[row["id"]] = row
        if len(rows) == size:
            return list(rows.values())
    raise StepError(f"{task}: {draws} draws gave {len(rows)} different {split} problems for `size: {size}`; {advice}")


def check_size(task: str, split: str, available: int, size: int) -> None:
    """Raise StepError if fewer problems are available than requested."""
    if available < size:
        raise StepError(f"{task}: there are only {available} {split} problems for `size: {size}`; lower `size`")


def choose(task: str, split: str, items: Sequence[Item], size: int, seed: int) -> list[Item]:
    """Return `size` different items in random order; raise StepError if there are fewer."""
    check_size(task, split, len(items), size)
    return [items[int(i)] for i in np.random.default_rng(seed).permutation(len(items))[:size]]


def read_metadata(row: Row, generator: str, read: Callable[[Row], Item]) -> Item:
    """Return what `read` takes from a row's metadata; raise StepError if the row does not come from `generator`."""
    try:
        return read(json.loads(row["metadata"] or ""))
    except (KeyError, TypeError, ValueError) as error:
        raise StepError(
            f"row {row.get('id')}: its metadata is not that of a `{generator}` problem; use problems of `{generator}`"
        ) from error
