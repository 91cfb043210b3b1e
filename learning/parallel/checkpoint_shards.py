"""Checkpoints of which every rank holds a part: written part by part, read in any other cut.

The files are those of torch.distributed.checkpoint in its form for safetensors, each with its places in its header;
its own form would add a pickle.
"""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from learning.parallel.group import Group
from schemas.sealed import file_digest

Like = Callable[[str, tuple[int, ...]], "torch.Tensor | None"]
"""(name, full shape) → a tensor sharded as needed; None: the full tensor is needed."""


def request_whole(name: str, shape: tuple[int, ...]) -> None:
    """Every tensor whole."""


def write_shards(folder: Path, tensors: Mapping[str, torch.Tensor], group: Group) -> dict[str, str]:
    """Write this rank's parts of tensors, and of what all hold a share; every file's name with its digest, on all."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    save({name: tensor.detach() for name, tensor in tensors.items()}, storage_writer=writer)
    group.barrier()
    mine = group.share(sorted(folder.glob("*.safetensors")))
    return dict(pair for pairs in group.gather([(file.name, file_digest(file)) for file in mine]) for pair in pairs)


def read_shards(folder: Path, like: Like) -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint of any number of ranks; each rank reads only the parts that it needs."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    wanted = {}
    for name, kept in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(kept, TensorStorageMetadata)
        model = like(name, tuple(kept.size))
        if model is None or tuple(model.shape) != tuple(kept.size):
            wanted[name] = torch.empty(kept.size, dtype=kept.properties.dtype)
        else:
            wanted[name] = torch.empty_like(model, dtype=kept.properties.dtype, requires_grad=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        load(wanted, storage_reader=reader, no_dist=True)
    return wanted
