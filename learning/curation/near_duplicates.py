"""Near-duplicates among any number of rows: signatures on disk, one band at a time in memory.

Rows are looked at in their order, and a row goes when an earlier row that stayed is similar enough. Only rows that
share a whole band of their signatures are compared. Files: `signatures`, a row's K numbers after the other's, and
`band-<i>`, a 64-bit hash per row. In memory: a few numbers per row, and for rows that share a band with another, one
per band. Letters: N rows, A rows that share a band, K numbers of a signature, R of them in a band, b bands.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
NONE = -1


class Signatures(AbstractContextManager):
    """Signatures (uint32, K >= bands x size), added block by block; they lie in `folder` until they are closed."""

    def __init__(self, folder: Path, num_perm: int, bands: int, size: int):
        self.num_perm, self.bands, self.size, self.count = num_perm, bands, size, 0
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "signatures"
        self._band_paths = [folder / f"band-{i}" for i in range(bands)]
        self._file = self.path.open("w+b", buffering=0)
        self._band_files = [path.open("wb") for path in self._band_paths]

    def __exit__(self, *error: object) -> None:
        for file, path in zip((self._file, *self._band_files), (self.path, *self._band_paths), strict=True):
            file.close()
            path.unlink()

    def add(self, signatures_NK: np.ndarray) -> None:
        """Append the signatures of the next rows."""
        self._file.write(signatures_NK.tobytes())
        for i, file in enumerate(self._band_files):
            hashes_N = np.zeros(len(signatures_NK), np.uint64)
            for k in range(i * self.size, (i + 1) * self.size):
                hashes_N = (hashes_N ^ signatures_NK[:, k]) * MULTIPLIER
                hashes_N ^= hashes_N >> np.uint64(29)
            file.write(hashes_N.tobytes())
        self.count += len(signatures_NK)

    def band(self, i: int) -> np.ndarray:
        """Return the hashes of band `i` (N)."""
        self._band_files[i].flush()
        return np.fromfile(self._band_paths[i], np.uint64)

    def rows(self, numbers: list[int]) -> np.ndarray:
        """Return the signatures of some rows (len(numbers) x K)."""
        width = 4 * self.num_perm
        raw = b"".join(os.pread(self._file.fileno(), width, width * number) for number in numbers)
        return np.frombuffer(raw, np.uint32).reshape(-1, self.num_perm)


def find_near_duplicates(signatures: Signatures, threshold: float) -> Iterator[tuple[int, int, float]]:
    """Yield for each row that goes: its place, that of the most similar earlier row that stays, and their similarity.

    Similarity is the share of equal numbers. Of equally similar rows the first is named.
    """
    rows_A, groups_Ab, num_groups = find_groups(signatures)
    last = np.full(num_groups, NONE, np.int32)  # the latest row of a group that stays, as a place among the A
    before_Ab = np.full(groups_Ab.shape, NONE, np.int32)  # the one of the same group that stayed before it
    columns = np.arange(signatures.bands)
    for place, (row, groups_b) in enumerate(zip(rows_A.tolist(), groups_Ab, strict=True)):
        shared = groups_b != NONE
        groups, bands = groups_b[shared], columns[shared]
        latest = last[groups]
        if latest.max() != NONE:
            earlier = _stayed(latest, bands, before_Ab)
            near = _nearest(signatures, row, rows_A[earlier].tolist(), threshold)
            if near is not None:
                yield row, *near
                continue
        before_Ab[place, bands] = latest
        last[groups] = place


def find_groups(signatures: Signatures) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the rows that share a band (A, ascending), their group in each band or NONE (A x b), and their number."""
    members, total = [], 0
    for i in range(signatures.bands):
        hashes_N = signatures.band(i)
        order_N = np.argsort(hashes_N, kind="stable").astype(np.int32)
        hashes_N = hashes_N[order_N]
        same_N = np.append(False, hashes_N[1:] == hashes_N[:-1])
        kept_N = same_N | np.append(same_N[1:], False)
        groups = total + (~same_N[kept_N]).cumsum(dtype=np.int32) - 1
        total += int((~same_N[kept_N]).sum())
        members.append((order_N[kept_N], groups.astype(np.int32)))
    some_N = np.zeros(signatures.count, bool)
    for rows, _ in members:
        some_N[rows] = True
    rows_A = np.flatnonzero(some_N).astype(np.int32)
    groups_Ab = np.full((len(rows_A), signatures.bands), NONE, np.int32)
    for i, (rows, groups) in enumerate(members):
        groups_Ab[rows_A.searchsorted(rows), i] = groups
    return rows_A, groups_Ab, total


def _stayed(latest: np.ndarray, bands: np.ndarray, before_Ab: np.ndarray) -> list[int]:
    """Return places of the rows that stayed and are in one of the groups, by following each group back; ascending."""
    stayed: set[int] = set()
    while len(latest := latest[(here := latest != NONE)]):
        bands = bands[here]
        stayed.update(latest.tolist())
        latest = before_Ab[latest, bands]
    return sorted(stayed)


def _nearest(signatures: Signatures, row: int, others: list[int], threshold: float) -> tuple[int, float] | None:
    """Return the most similar row among those that share a band, if it is similar enough; hashes may collide."""
    signed = signatures.rows([row, *others])
    equal = signed[1:] == signed[0]
    used = signatures.bands * signatures.size
    proposed = equal[:, :used].reshape(len(others), signatures.bands, signatures.size).all(2).any(1)
    similarity = np.where(proposed, equal.sum(1) / signatures.num_perm, -1.0)
    best = int(similarity.argmax())
    return (others[best], float(similarity[best])) if similarity[best] >= threshold else None
