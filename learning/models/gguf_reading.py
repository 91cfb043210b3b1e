"""How transformers reads GGUF files, without what costs most of the time and changes nothing."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np


class PlainReader(gguf.GGUFReader):
    """gguf's reader on a plain array: each slice of a `np.memmap` costs as much as ten, and a vocabulary is 100,000."""

    def _get(self, *where: Any, **options: Any) -> Any:
        if isinstance(self.data, np.memmap):
            self.data = self.data.view(np.ndarray)  # it keeps the map open
        return super()._get(*where, **options)


@contextmanager
def quick_reading() -> Iterator[None]:
    """Let transformers read GGUF files in a third of the time; one thread at a time may be inside the block.

    It opens a file by `gguf.GGUFReader`, and it asks `gguf.get_tensor_name_map` for the names of all tensors again for
    each of a model's modules, though they depend on the architecture and the number of layers alone.
    """
    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = PlainReader, functools.cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names
