"""Records of the tokens that were sampled from, one text per token of a completion.

An empty text stands for the whole vocabulary: nothing was cut, or the token was not sampled. Any other text holds the
ids or one bit per token of the vocabulary, whichever is shorter, in base64, so that samples can be stored as JSON.

Shapes: B records, V vocabulary.
"""

import base64
from collections.abc import Sequence

import numpy as np

IDS, BITS = "i", "b"
"""First character of a record of ids (32 bits each, little-endian), or of bits."""


def encode_kept(kept_BV: np.ndarray) -> list[str]:
    """Return the record of every row of a boolean array."""
    return [_encode(kept_V) for kept_V in kept_BV]


def _encode(kept_V: np.ndarray) -> str:
    if kept_V.all():
        return ""
    ids = np.flatnonzero(kept_V).astype("<u4").tobytes()
    bits = np.packbits(kept_V).tobytes()
    kind, data = (IDS, ids) if len(ids) <= len(bits) else (BITS, bits)
    return kind + base64.b64encode(data).decode("ascii")


def decode_kept(records: Sequence[str], vocabulary: int) -> np.ndarray:
    """Return which tokens each record keeps (B, V) bool; those beyond the vocabulary of a record are not kept."""
    kept_BV = np.zeros((len(records), vocabulary), dtype=bool)
    for kept_V, record in zip(kept_BV, records, strict=True):
        data = base64.b64decode(record[1:])
        if not record:
            kept_V[:] = True
        elif record[0] == IDS:
            kept_V[np.frombuffer(data, dtype="<u4")] = True
        else:
            bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8), count=min(vocabulary, 8 * len(data)))
            kept_V[: len(bits)] = bits.astype(bool)
    return kept_BV
