"""Checkpoints of a step: safetensors and JSON in a folder made whole by one rename; never a pickle."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from schemas.errors import StepError

KEPT = 2
"""How many checkpoints stay: the latest, and the one before in case the latest is damaged."""


def save_checkpoint(folder: Path, step: int, tensors: dict[str, torch.Tensor], state: Any) -> None:
    """Write `folder/step-<step>`: it is either whole or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".writing-{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    file = fresh / "tensors.safetensors"
    save_file({name: t.detach().contiguous().cpu().clone() for name, t in tensors.items()}, file)
    content = {"step": step, "sha256": _digest(file), "state": state}
    (fresh / "state.json").write_text(json.dumps(content))
    for file in fresh.iterdir():
        _flush(file)
    final = folder / f"step-{step:08d}"
    shutil.rmtree(final, ignore_errors=True)
    fresh.rename(final)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)


def load_latest(folder: Path, upto: int | None = None) -> tuple[int, dict[str, torch.Tensor], Any] | None:
    """Step, tensors and state of the latest whole checkpoint (up to a step); a damaged one is passed over."""
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        try:
            content = json.loads((candidate / "state.json").read_text())
            if upto is not None and content["step"] > upto:
                continue
            if content["sha256"] == _digest(candidate / "tensors.safetensors"):
                return content["step"], load_file(candidate / "tensors.safetensors"), content["state"]
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            continue
    return None


def save_training(
    folder: Path, step: int, parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, told: Any
) -> None:
    """A checkpoint of a loop that trains one model: parameters, moments, random states, and what it has told."""
    moments, groups = optimizer_state(optimizer)
    rng_tensors, rng_rest = rng_state()
    tensors = prefixed("model", parameters) | prefixed("optimizer", moments) | prefixed("rng", rng_tensors)
    save_checkpoint(folder, step, tensors, {"optimizer": groups, "rng": rng_rest, "told": told})


def load_training(
    folder: Path, parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> tuple[int, Any] | None:
    """Put back what `save_training` left last; returns its step and what was told. Raises StepError."""
    found = load_latest(folder)
    if found is None:
        return None
    step, tensors, state = found
    load_weights(parameters, below("model", tensors))
    load_optimizer_state(optimizer, below("optimizer", tensors), state["optimizer"])
    set_rng_state(below("rng", tensors), state["rng"])
    return step, state["told"]


def prefixed(group: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors under `<group>/<name>`."""
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def below(group: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those of `prefixed` with their own names again."""
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}


def load_weights(parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a checkpoint's tensors into parameters of the same names; raises StepError for other names or shapes."""
    here = {name: tuple(p.shape) for name, p in parameters.items()}
    kept = {name: tuple(t.shape) for name, t in tensors.items()}
    if differ := sorted(name for name in here.keys() | kept.keys() if here.get(name) != kept.get(name)):
        name = differ[0]
        raise StepError(
            f"checkpoint: made for another model, {len(differ)} tensor(s) differ: {name} has shape "
            f"{kept.get(name, 'none')} in the checkpoint and {here.get(name, 'none')} here; delete the checkpoint"
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Tensors by `<parameter>/<name>`, and the groups without their parameters."""
    whole = optimizer.state_dict()
    tensors = {f"{i}/{name}": torch.as_tensor(v) for i, state in whole["state"].items() for name, v in state.items()}
    return tensors, whole["param_groups"]


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[Any]) -> None:
    """Put back what `optimizer_state` gave; raises StepError when the parameters are others."""
    shapes = {str(i): tuple(p.shape) for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, field = name.partition("/")
        if index not in shapes or (tensor.ndim and tuple(tensor.shape) != shapes[index]):
            wanted = shapes.get(index, "no such parameter")
            raise StepError(f"checkpoint: optimiser state {name} has shape {tuple(tensor.shape)}, here it is {wanted}")
        state.setdefault(int(index), {})[field] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rng_state() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """States of torch's, numpy's and Python's global generators, as tensors and JSON."""
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002 — the global generator is what is kept
    version, numbers, gauss = random.getstate()
    tensors = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(keys.astype(np.int64))}
    if torch.cuda.is_available():
        tensors |= {f"cuda{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    rest = {"numpy": [kind, int(position), int(has_gauss), float(cached)], "python": [version, list(numbers), gauss]}
    return tensors, rest


def set_rng_state(tensors: dict[str, torch.Tensor], rest: dict[str, Any]) -> None:
    """Put back what `rng_state` gave."""
    torch.set_rng_state(tensors["torch"])
    if cuda := [tensors[name] for name in sorted(tensors) if name.startswith("cuda")]:
        torch.cuda.set_rng_state_all(cuda)
    kind, position, has_gauss, cached = rest["numpy"]
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state((kind, keys, position, has_gauss, cached))  # noqa: NPY002
    version, numbers, gauss = rest["python"]
    random.setstate((version, tuple(numbers), gauss))


def _digest(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _flush(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
