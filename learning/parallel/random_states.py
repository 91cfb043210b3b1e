"""States of the global random generators: kept, put back, and of every rank of a group."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from learning.parallel.group import Group


def random_states(group: Group) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Those of all ranks: tensors `rng/<name>` of rank 0 and `rng<rank>/<name>` of others, and JSON by the same."""
    tensors: dict[str, torch.Tensor] = {}
    rest: dict[str, Any] = {}
    for rank, (found, told) in enumerate(group.gather(rng_state())):
        tensors |= {f"{_of(rank)}/{name}": tensor for name, tensor in found.items()}
        rest[_of(rank)] = told
    return tensors, rest


def put_random_states_back(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], group: Group) -> None:
    """Put back what `random_states` gave; a rank that was not there keeps its own."""
    mine = _of(group.rank)
    if mine in state:
        found = {name.removeprefix(f"{mine}/"): t for name, t in tensors.items() if name.startswith(f"{mine}/")}
        set_rng_state(found, state[mine])


def own_randomness(group: Group, seed: int) -> None:
    """Let ranks beside rank 0, which is as a process alone, draw other numbers: two of them drop out differently."""
    if not group.main:
        torch.manual_seed(int(np.random.SeedSequence([seed, group.rank]).generate_state(1, np.uint32)[0]))


def _of(rank: int) -> str:
    return f"rng{rank}" if rank else "rng"


def rng_state() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """States of torch's, numpy's and Python's global generators, as tensors and JSON."""
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 — the global generator is what is kept
    version, numbers, gauss = random.getstate()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    if torch.cuda.is_available():  # of this process's device: to ask the others would take memory on each
        tensors["cuda"] = torch.cuda.get_rng_state()
    rest = {"numpy": [kind, int(position), int(has_gauss), float(cached)], "python": [version, list(numbers), gauss]}
    return tensors, rest


def set_rng_state(tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
    """Put back what `rng_state` gave."""
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    kind, position, has_gauss, cached = rest["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))  # noqa: NPY002
    version, numbers, gauss = rest["python"]
    random.setstate((version, tuple(numbers), gauss))
