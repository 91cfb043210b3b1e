"""MinHash signatures of many texts at once: Broder, "On the resemblance and containment of documents" (1997).

A shingle is hashed by the CRC-32 of its UTF-8 bytes, mixed by the finaliser of MurmurHash3; permutation k maps a hash h
to a_k h + b_k modulo 2^32 with odd a_k, a bijection. These are the signatures of datasketch 2 ("affine32"), bit by bit.
Letters: N texts, K permutations, S shingles of all texts, B bytes of all texts.
"""

from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np

WIDTH = 1 << 16
"""Shingles that are hashed at a time: what stays in a core's cache."""


class Hasher:
    """Signatures of `num_perm` 32-bit numbers from shingles of `ngram` characters; a shorter text is one shingle."""

    def __init__(self, num_perm: int, ngram: int, seed: int):
        source = np.random.RandomState(seed)  # the one whose stream never changes
        self.ngram = ngram
        self.factors_K = source.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        self.offsets_K = source.randint(0, 1 << 32, num_perm, dtype=np.uint32)

    def signatures(self, texts: Sequence[str]) -> np.ndarray:
        """Return the signature of each text, N x K. Of shingles that occur twice one counts: a minimum sees to that."""
        sizes_N = np.fromiter(map(len, texts), np.int64, len(texts))
        counts_N = np.maximum(sizes_N - self.ngram + 1, 1)
        signatures_NK = np.empty((len(texts), len(self.factors_K)), np.uint32)
        ends_N, at = counts_N.cumsum(), 0
        while at < len(texts):
            base = ends_N[at] - counts_N[at]
            to = max(at + 1, int(ends_N.searchsorted(base + WIDTH, "right")))
            hashes_S = mix_bits(hash_shingles(texts[at:to], sizes_N[at:to], counts_N[at:to], self.ngram))
            signatures_NK[at:to] = self._minima(hashes_S, ends_N[at:to] - counts_N[at:to] - base).T
            at = to
        return signatures_NK

    def _minima(self, hashes_S: np.ndarray, starts_N: np.ndarray) -> np.ndarray:
        found_KN = np.empty((len(self.factors_K), len(starts_N)), np.uint32)
        mapped_S = np.empty_like(hashes_S)
        for k, (factor, offset) in enumerate(zip(self.factors_K, self.offsets_K, strict=True)):
            np.multiply(hashes_S, factor, out=mapped_S)
            np.add(mapped_S, offset, out=mapped_S)
            np.minimum.reduceat(mapped_S, starts_N, out=found_KN[k])
        return found_KN


def normalise_text(text: str) -> str:
    """Return text as shingles see it: case folded, white space squeezed."""
    return " ".join(text.casefold().split())


def mix_bits(hashes: np.ndarray) -> np.ndarray:
    """Return the 32-bit finaliser of MurmurHash3 (Appleby 2011), a bijection under which near inputs lie far apart."""
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def hash_shingles(texts: Sequence[str], sizes_N: np.ndarray, counts_N: np.ndarray, ngram: int) -> np.ndarray:
    """Return the CRC-32 of every shingle (S); `sizes_N` are the characters of each text, `counts_N` its shingles."""
    bytes_B = np.frombuffer("".join(texts).encode(), np.uint8)
    if len(bytes_B) == sizes_N.sum() and sizes_N.min() >= ngram:
        return hash_plain_shingles(bytes_B, sizes_N.cumsum(), ngram)
    # Where each character begins: at bytes that do not continue one.
    begins = np.append(np.flatnonzero((bytes_B & 0xC0) != 0x80), len(bytes_B))
    first_N = sizes_N.cumsum() - sizes_N
    place_S = np.arange(counts_N.sum()) - np.repeat(counts_N.cumsum() - counts_N, counts_N)
    start_S = np.repeat(first_N, counts_N) + place_S
    length_S = np.minimum(ngram, np.repeat(sizes_N, counts_N))
    from_S = begins[start_S]
    width_S = begins[start_S + length_S] - from_S
    hashes_S = np.empty(len(from_S), np.uint32)
    for width in np.unique(width_S).tolist():
        chosen = np.flatnonzero(width_S == width)
        hashes_S[chosen] = compute_window_crcs(bytes_B, from_S[chosen], width)
    return hashes_S


def hash_plain_shingles(bytes_B: np.ndarray, ends_N: np.ndarray, ngram: int) -> np.ndarray:
    """Return the same for texts of ASCII that are no shorter than a shingle: a window begins at every byte."""
    tables, constant = make_crc_tables(ngram)
    count = len(bytes_B) - ngram + 1
    hashes = np.full(count, constant, np.uint32)
    for place in range(ngram):
        hashes ^= tables[place].take(bytes_B[place : place + count])
    inside = np.ones(count, bool)
    for place in range(1, ngram):
        inside[ends_N[:-1] - place] = False
    return hashes[inside]


def compute_window_crcs(bytes_B: np.ndarray, from_S: np.ndarray, width: int) -> np.ndarray:
    """Return the CRC-32 of the windows of `width` bytes that begin at `from_S`.

    CRC is affine over GF(2): that of a window is the sum (xor) of what each byte at its place gives, and of a constant.
    """
    tables, constant = make_crc_tables(width)
    found_S = np.full(len(from_S), constant, np.uint32)
    for place in range(width):
        found_S ^= tables[place][bytes_B[from_S + place]]
    return found_S


@lru_cache(maxsize=64)
def make_crc_tables(width: int) -> tuple[np.ndarray, np.uint32]:
    """Return for windows of `width` bytes: what each byte adds at each place (width x 256), and the CRC of zeros."""
    zeros = crc32(bytes(width))
    tables = np.empty((width, 256), np.uint32)
    for place in range(width):
        rest = bytes(width - place - 1)
        tables[place] = [crc32(bytes(place) + bytes([byte]) + rest) ^ zeros for byte in range(256)]
    return tables, np.uint32(zeros)
