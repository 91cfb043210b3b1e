"""States of the global random generators of every rank of a group: saved and restored."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from learning.parallel.group import Group

RandomValues = dict[str, list[Any]]
"""The parts of states that are no tensors, as JSON."""


def collect_random_states(group: Group) -> tuple[dict[str, torch.Tensor], dict[str, RandomValues]]:
    """Return the states of all ranks: tensors `rng/<name>` (rank 0) and `rng<rank>/<name>`, and JSON named alike."""
    tensors: dict[str, torch.Tensor] = {}
    rest: dict[str, RandomValues] = {}
    for rank, (states, values) in enumerate(group.gather(get_rng_state())):
        tensors |= {f"{_of(rank)}/{name}": tensor for name, tensor in states.items()}
        rest[_of(rank)] = values
    return tensors, rest


def restore_random_states(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], group: Group) -> None:
    """Restore what `collect_random_states` returned; a rank without a saved state keeps its own."""
    mine = _of(group.rank)
    if mine in state:
        states = {name.removeprefix(f"{mine}/"): t for name, t in tensors.items() if name.startswith(f"{mine}/")}
        set_rng_state(states, state[mine])


def seed_rank(group: Group, seed: int) -> None:
    """Seed every rank but 0 differently, so that their dropout differs; rank 0 draws as a single process does."""
    if not group.main:
        torch.manual_seed(int(np.random.SeedSequence([seed, group.rank]).generate_state(1, np.uint32)[0]))


def _of(rank: int) -> str:
    return f"rng{rank}" if rank else "rng"


def get_rng_state() -> tuple[dict[str, torch.Tensor], RandomValues]:
    """Return states of torch's, numpy's and Python's global generators, as tensors and JSON."""
    state: Any = np.random.get_state()  # noqa: NPY002 — the global generator is what is kept
    kind, keys, position, has_gauss, cached = state
    version, numbers, gauss = random.getstate()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    if torch.cuda.is_available():  # of this process's device: to ask the others would take memory on each
        tensors["cuda"] = torch.cuda.get_rng_state()
    rest = {"numpy": [kind, int(position), int(has_gauss), float(cached)], "python": [version, list(numbers), gauss]}
    return tensors, rest


def set_rng_state(tensors: dict[str, torch.Tensor], rest: RandomValues) -> None:
    """Restore what `get_rng_state` returned."""
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
    kind, position, has_gauss, cached = rest["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))  # noqa: NPY002
    version, numbers, gauss = rest["python"]
    random.setstate((version, tuple(numbers), gauss))
