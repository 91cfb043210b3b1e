"""The weights of a model folder, tensor by tensor: reads and writes of safetensors without memory mapping or caching.

Every touched page of a mapped file would count as memory of the process; a tensor that is read by position is freed
when it is dropped.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import StepError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
LARGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class Entry:
    """Location of a tensor: file, first byte, number of bytes, shape, data type."""

    file: Path
    start: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Weights:
    """Tensors of a model folder: `model.safetensors`, or the files that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path):
        """Read config and headers; raise StepError if the folder holds no model in safetensors."""
        if not (folder / "config.json").is_file():
            raise StepError(f"{folder.name}: no model here, config.json is missing")
        self.folder = folder
        self.config: dict = json.loads((folder / "config.json").read_text())
        self.entries: dict[str, Entry] = {}
        for file in _files(folder):
            self.entries.update(_entries(file))

    @property
    def tied(self) -> bool:
        """Return whether the head is tied to the embedding."""
        return bool(self.config.get("tie_word_embeddings", False))

    def read(self, name: str) -> Tensor:
        """Return one tensor, in newly allocated memory."""
        return self.open(name).read_whole()

    def open(self, name: str) -> "StoredTensor":
        """Return one tensor without reading it."""
        entry = self.entries[name]
        return StoredTensor(name, entry, entry.dtype)


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that stays in its file; parts of it are read when they are needed, in a given precision."""

    name: str
    entry: Entry
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        return self.entry.shape

    def numel(self) -> int:
        """Return the number of elements of the whole tensor."""
        return torch.Size(self.shape).numel()

    def is_floating_point(self) -> bool:
        """Return whether the elements are floating-point numbers."""
        return self.dtype.is_floating_point

    def to(self, dtype: torch.dtype) -> "StoredTensor":
        """Return the same tensor, read in another precision."""
        return replace(self, dtype=dtype)

    def read(self, where: slice = slice(None)) -> Tensor:
        """Return consecutive elements, in newly allocated memory; raise StepError if the file is cut short."""
        start, stop, _ = where.indices(self.numel())
        out = torch.empty(max(0, stop - start), dtype=self.entry.dtype)
        if out.numel():
            view = memoryview(out.view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]  # a numpy array is a buffer
            with self.entry.file.open("rb", buffering=0) as handle:
                handle.seek(self.entry.start + start * out.itemsize)
                while len(view):
                    if not (got := handle.readinto(view)):
                        raise StepError(f"{self.entry.file.name}: ends within tensor {self.name}")
                    view = view[got:]
        return out.to(self.dtype)

    def read_whole(self) -> Tensor:
        """Return the whole tensor in its shape, in newly allocated memory."""
        return self.read().view(self.shape)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        return [folder / Path(name).name for name in listed]
    if not (folder / "model.safetensors").is_file():
        raise StepError(f"{folder.name}: no model.safetensors here; save the model as safetensors first")
    return [folder / "model.safetensors"]


def _entries(file: Path) -> dict[str, Entry]:
    """Return the entries of a validated header; raise StepError if the file is not safetensors."""
    broken = StepError(f"{file.name}: not a safetensors file, or cut short")
    if not file.is_file():
        raise StepError(f"{file.name}: listed in the index but missing")
    total = file.stat().st_size
    with file.open("rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        if total < 8 or length > min(LARGEST_HEADER, total - 8):
            raise broken
        try:
            header = json.loads(handle.read(length))
        except ValueError as error:
            raise broken from error
    header.pop("__metadata__", None)
    entries = {}
    for name, item in header.items():
        start, end = item["data_offsets"]
        if item["dtype"] not in DTYPES:
            raise StepError(f"{file.name}: tensor {name} has precision {item['dtype']}, which is not supported")
        dtype, shape = DTYPES[item["dtype"]], tuple(item["shape"])
        if end - start != torch.Size(shape).numel() * dtype.itemsize or 8 + length + end > total or start < 0:
            raise broken
        entries[name] = Entry(file, 8 + length + start, end - start, shape, dtype)
    return entries


class WeightsWriter:
    """Writes one safetensors file with known shapes, tensor by tensor, in the given order."""

    def __init__(self, file: Path, shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]):
        self._left, end = list(shapes.items()), 0
        header: dict[str, dict[str, Any]] = {"__metadata__": {"format": "pt"}}
        for name, (shape, dtype) in shapes.items():
            start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._handle = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb", buffering=0)
        self._handle.write(len(text).to_bytes(8, "little") + text)

    def write(self, name: str, tensor: Tensor) -> None:
        """Append the next tensor; raise ValueError if it is not the expected one."""
        announced, (shape, dtype) = self._left.pop(0)
        if (name, tuple(tensor.shape), tensor.dtype) != (announced, shape, dtype):
            raise ValueError(f"expected {announced} {shape} {dtype}, got {name} {tuple(tensor.shape)} {tensor.dtype}")
        view = memoryview(tensor.contiguous().view(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]  # likewise
        while len(view):
            view = view[self._handle.write(view) :]

    def __enter__(self) -> "WeightsWriter":
        """Return itself."""
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Close the file; raise ValueError if an expected tensor was not written."""
        self._handle.close()
        if kind is None and self._left:
            raise ValueError(f"not written: {self._left[0][0]}")
