"""Setting of glibc's allocator by which a process keeps freed memory for its next tensors."""

import ctypes
import os
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
LARGEST = 32 << 20
"""Bytes of the largest block that glibc can be configured to allocate from its heap."""
OWN_SETTINGS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which a user sets these parameters."""


def keep_pages() -> None:
    """Make glibc allocate blocks of up to 32 MB from its heap, and never shrink the heap.

    By default it maps and unmaps memory for every tensor of some hundred kilobytes: the kernel then clears pages
    all the time, which costs a fifth of a training step of a small model. In return, large models hold up to twice the
    memory of their tensors. Without glibc, and where OWN_SETTINGS are set, this has no effect.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in OWN_SETTINGS):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
