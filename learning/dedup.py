"""Duplicates, exact and near: the first of equal rows stays.

MinHash: Broder, "On the resemblance and containment of documents" (1997); banded search as in datasketch.
"""

import zlib

from datasketch import MinHash, MinHashLSH

from learning.curation import Curation


def drop_exact_duplicates(rows: Curation) -> None:
    """Drop rows whose roles and text (Unicode composed, white space squeezed, case kept) stood in an earlier row."""
    rows.run(
        """insert into dropped select row, 'exact_duplicate', 'of ' || first from
           (select row, first_value(id) over same as first, row_number() over same as place from kept
            window same as (partition by key order by row)) where place > 1"""
    )


def shingles(text: str, ngram: int) -> set[bytes]:
    """The distinct runs of `ngram` characters, case folded and white space squeezed; a shorter text is one shingle."""
    squeezed = " ".join(text.casefold().split())
    return {squeezed[i : i + ngram].encode() for i in range(max(1, len(squeezed) - ngram + 1))}


def bands(threshold: float, num_perm: int) -> tuple[int, int]:
    """Bands and rows of each for the search: the longest rows that still propose 99 % of the pairs at `threshold`.

    A pair of similarity s is proposed with probability 1 - (1 - s^rows)^bands.
    """
    longest = num_perm // 2
    fitting = [r for r in range(1, longest + 1) if 1 - (1 - threshold**r) ** (num_perm // r) >= 0.99]
    rows = max(fitting, default=1)
    return num_perm // rows, rows


def drop_near_duplicates(rows: Curation, threshold: float, num_perm: int, ngram: int, seed: int) -> None:
    """Drop rows whose estimated Jaccard similarity of shingles with an earlier kept row reaches `threshold`.

    The estimate's standard error is sqrt(J(1 - J) / num_perm); only pairs that `bands` proposes are compared.
    Takes about 0.2 ms and 5 kB of memory per row.
    """
    blank = MinHash(num_perm=num_perm, seed=seed + 1, hashfunc=zlib.crc32)
    index = MinHashLSH(num_perm=num_perm, params=bands(threshold, num_perm))
    sketches: dict[int, MinHash] = {}
    names: dict[int, str] = {}
    dropped = []
    for row, name, text in rows.run("select row, id, text from kept order by row"):
        sketch = blank.copy()
        sketch.update_batch(sorted(shingles(text, ngram)))
        near = [(sketch.jaccard(sketches[other]), -other) for other in index.query(sketch)]
        similarity, other = max(near, default=(0.0, 0))
        if similarity >= threshold:
            dropped.append((row, "near_duplicate", f"of {names[-other]}, similarity {similarity:.2f}"))
            continue
        index.insert(row, sketch)
        sketches[row], names[row] = sketch, name
    rows.drop(dropped)
