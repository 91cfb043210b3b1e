"""Duplicates, exact and near: the first of equal rows stays.

MinHash: Broder, "On the resemblance and containment of documents" (1997); banded search as in datasketch.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from learning.curation.ledger import WRITTEN, Curation
from learning.curation.minhash import Hasher, normalise_text
from learning.curation.near_duplicates import Signatures, find_near_duplicates

pc: Any = pyarrow.compute
"""pyarrow makes its functions when it is imported: no stub lists them."""
PIECE = 4096
"""Rows whose signatures a thread makes at a time, or that are dropped at a time."""


def drop_exact_duplicates(rows: Curation) -> None:
    """Drop rows with the roles and text of an earlier row, after composing Unicode and merging white space."""
    rows.run(
        """insert into dropped select again.row, 'exact_duplicate', 'of ' || first.id from
           (select key, min(row) as row from kept group by key having count(*) > 1) found
           join kept again on again.key = found.key and again.row <> found.row
           join texts first on first.row = found.row"""
    )


def choose_bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Return the number of bands and of rows in each: the most rows that propose 99 % of the pairs at `threshold`.

    A pair of similarity s is proposed with probability 1 - (1 - s^rows)^bands.
    """
    longest = num_perm // 2
    fitting = [r for r in range(1, longest + 1) if 1 - (1 - threshold**r) ** (num_perm // r) >= 0.99]
    rows = max(fitting, default=1)
    return num_perm // rows, rows


def drop_near_duplicates(rows: Curation, threshold: float, num_perm: int, ngram: int, seed: int) -> None:
    """Drop rows whose estimated Jaccard similarity of shingles with an earlier kept row reaches `threshold`.

    The estimate's standard error is sqrt(J(1 - J) / num_perm); only pairs that `bands` proposes are compared.
    Takes 4 num_perm bytes on disk per row, and some 100 bytes of memory.
    """
    numbers = np.flatnonzero(rows.mask())
    hasher = Hasher(num_perm, ngram, seed + 1)
    with Signatures(rows.spill / "minhash", num_perm, *choose_bands(threshold, num_perm)) as signatures:
        for block in rows.blocks(["prompt", *WRITTEN[rows.artifact_type]]):
            for made in _in_threads(hasher, join_texts(block, rows.artifact_type), rows.num_threads):
                signatures.add(made)
        pairs = find_near_duplicates(signatures, threshold)
        while piece := list(islice(pairs, PIECE)):
            _drop_near(rows, [(int(numbers[a]), int(numbers[b]), similarity) for a, b, similarity in piece])


def join_texts(block: pa.RecordBatch, artifact_type: str) -> list[str]:
    """Return the text of each row: the contents of prompt and completions, joined by line breaks."""
    parts = [_contents(block.column(name)) for name in ["prompt", *WRITTEN[artifact_type]]]
    return pc.binary_join_element_wise(*parts, "\n", null_handling="skip").to_pylist()


def _contents(messages: pa.ListArray) -> pa.StringArray:
    each = messages.flatten()
    content, more = (pc.fill_null(pc.struct_field(each, name), "") for name in ("content", "more"))
    flat = pc.binary_join_element_wise(content, more, "")
    sizes = pc.fill_null(pc.list_value_length(messages), 0)
    ends = np.cumsum(sizes.to_numpy(zero_copy_only=False), dtype=np.int32)
    listed = pa.ListArray.from_arrays(pa.array(np.append(np.int32(0), ends)), flat)
    joined = pc.binary_join(listed, "\n")
    return pc.if_else(pc.is_valid(messages), joined, pa.scalar(None, pa.string()))


def _in_threads(hasher: Hasher, texts: Sequence[str], num_threads: int) -> Iterator[np.ndarray]:
    """Yield signatures of the texts, in their order; numpy leaves the interpreter free while it computes."""
    pieces = [texts[at : at + PIECE] for at in range(0, len(texts), PIECE)]
    with ThreadPoolExecutor(num_threads) as pool:
        yield from pool.map(lambda piece: hasher.signatures([normalise_text(text) for text in piece]), pieces)


def _drop_near(rows: Curation, pairs: list[tuple[int, int, float]]) -> None:
    """Drop rows with the name of the row that each is like."""
    names = rows.names({other for _, other, _ in pairs})
    rows.drop([(row, "near_duplicate", f"of {names[other]}, similarity {value:.2f}") for row, other, value in pairs])
