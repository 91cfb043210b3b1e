"""Memory that a process keeps for its next tensors instead of giving it back to the kernel between them."""

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Names of glibc's mallopt."""
LARGEST = 32 << 20
"""Bytes of the largest block that glibc can be set to take from its heap."""


def keep_pages() -> None:
    """Let glibc take blocks of up to 32 MB from its heap, and keep the heap.

    By default it maps and unmaps memory for every tensor of some hundred kilobytes: the kernel then clears
    pages all the time, which costs a fifth of a training step of a small model. Nothing happens without glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
