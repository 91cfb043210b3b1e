"""Freed memory is kept for the next tensors, unless the user sets glibc's allocator."""

import os
import subprocess
import sys

import pytest

BLOCKS = """
import ctypes
from learning.models.memory import keep_pages
class Counts(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Counts
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
keep_pages()
before = libc.mallinfo2().hblks
libc.malloc(16 << 20)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
@pytest.mark.parametrize(
    ("settings", "mapped"),
    [({}, 0), ({"MALLOC_MMAP_THRESHOLD_": str(12 << 20)}, 1), ({"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}, 0)],
)
def test_blocks_of_16_mb_come_from_the_heap_unless_the_user_says_otherwise(settings, mapped):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS], env=clean | settings, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == mapped
