"""Checkpoints of which every rank holds a part: written part by part, read in any other cut.

The files are those of torch.distributed.checkpoint in its form for safetensors, each with its places in its header;
its own form would put a pickle beside them.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from learning.parallel.group import Group
from schemas.sealed import file_digest

Like = Callable[[str, tuple[int, ...]], "torch.Tensor | None"]
"""(name, whole shape) → a tensor that is cut as it is wanted; None: wanted whole."""


def as_it_is(name: str, shape: tuple[int, ...]) -> None:
    """Every tensor whole."""


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], group: Group) -> dict[str, str]:
    """Write this rank's parts of tensors, and of what all hold a share; every file's name with its digest, on all."""
    from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save({name: tensor.detach() for name, tensor in tensors.items()}, storage_writer=writer)
    group.barrier()
    mine = group.share(sorted(folder.glob("*.safetensors")))
    return dict(pair for pairs in group.gather([(file.name, file_digest(file)) for file in mine]) for pair in pairs)


def read_shards(folder: Path, like: Like) -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint, however many ranks wrote it; each rank reads only what it wants."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader, load

    reader = HuggingFaceStorageReader(str(folder))
    wanted = {}
    for name, kept in reader.read_metadata().state_dict_metadata.items():
        model = like(name, tuple(kept.size))
        if model is None or tuple(model.shape) != tuple(kept.size):
            wanted[name] = torch.empty(kept.size, dtype=kept.properties.dtype)
        else:
            wanted[name] = torch.empty_like(model, dtype=kept.properties.dtype, requires_grad=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(wanted, storage_reader=reader, no_dist=True)
    return wanted
