"""Checkpoints of a step: safetensors and JSON in a folder made whole by one rename; never a pickle."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from learning.models.sealed_folder import folder_problem, seal_folder
from learning.parallel.checkpoint_shards import Like, as_it_is, read_shards, write_shards
from learning.parallel.group import ALONE, Group
from learning.parallel.random_states import put_random_states_back, random_states
from schemas.errors import StepError
from schemas.sealed import file_digest

WHOLE = "tensors.safetensors"
"""File of a checkpoint that one process wrote."""
STATE = "state.json"
KEPT = 2
"""How many checkpoints stay: the latest, and the one before in case the latest is damaged."""


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, torch.Tensor], state: Any, group: Group = ALONE
) -> None:
    """Write `folder/step-<step>`: it is either whole or not there.

    All ranks of a group call it: rank 0 writes what all hold, and where each holds a part, each writes its own.
    """
    fresh = folder / f".writing-{group.broadcast(os.getpid())}"
    if group.main:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    group.barrier()
    if group.shards:
        written = write_shards(fresh, tensors, group)
    elif group.main:
        save_file({name: t.detach().contiguous().cpu().clone() for name, t in tensors.items()}, fresh / WHOLE)
        written = {WHOLE: file_digest(fresh / WHOLE)}
    if group.main:
        (fresh / STATE).write_text(json.dumps({"step": step, "state": state}))
        for file in fresh.iterdir():
            _flush(file)
        final = folder / f"step-{step:08d}"
        seal_folder(fresh, final.name, {**written, STATE: file_digest(fresh / STATE)})
        _flush(fresh)
        shutil.rmtree(final, ignore_errors=True)
        fresh.rename(final)
        _flush(folder)
        for old in sorted(folder.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)
    group.barrier()


def load_latest(
    folder: Path,
    upto: int | None = None,
    *,
    like: Like = as_it_is,
    group: Group = ALONE,
    refuse: Callable[[Any], str | None] = lambda state: None,
) -> tuple[int, dict[str, torch.Tensor], Any] | None:
    """Step, tensors and state of the latest whole checkpoint (up to a step); a damaged one is said and not used.

    It may come from any number of processes. `like` says which of its tensors are wanted as shards, and `refuse` what
    is wrong with that to which a state refers.
    """
    found = group.broadcast(_latest_whole(folder, upto, refuse) if group.main else None)
    if found is None:
        return None
    chosen, content = found
    whole = (chosen / WHOLE).is_file() and not group.shards
    tensors = load_file(chosen / WHOLE) if whole else read_shards(chosen, like)
    return content["step"], tensors, content["state"]


def _latest_whole(
    folder: Path, upto: int | None, refuse: Callable[[Any], str | None]
) -> tuple[Path, dict[str, Any]] | None:
    """The folder of the latest checkpoint whose files are as they were written, and what it says of itself.

    Others are renamed: they are never read, and do not count among those that are kept.
    """
    refused = 0
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        if upto is not None and candidate.name > f"step-{upto:08d}":
            continue
        problem, content = folder_problem(candidate), {}
        if problem is None:
            content = json.loads((candidate / STATE).read_text())
            problem = refuse(content["state"])
        if problem is None:
            return candidate, content
        refused += 1
        print(f"checkpoint {candidate.name}: {problem}; it is not used")
        aside = candidate.with_name(f"damaged-{candidate.name}")
        shutil.rmtree(aside, ignore_errors=True)
        candidate.rename(aside)
    if refused:
        print(f"none of {refused} checkpoint(s) can be used: begun from the start")
    return None


def save_training(
    folder: Path,
    step: int,
    parameters: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    told: Any,
    group: Group = ALONE,
) -> None:
    """A checkpoint of a loop that trains one model: parameters, moments, random states, and what it has told."""
    moments, groups = optimizer_state(optimizer)
    rng_tensors, rng_rest = random_states(group)
    tensors = prefixed("model", parameters) | prefixed("optimizer", moments) | rng_tensors
    save_checkpoint(folder, step, tensors, {"optimizer": groups, **rng_rest, "told": told}, group)


def load_training(
    folder: Path, parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, group: Group = ALONE
) -> tuple[int, Any] | None:
    """Put back what `save_training` left last; returns its step and what was told. Raises StepError."""
    found = load_latest(folder, like=like_trained(parameters, optimizer), group=group)
    if found is None:
        return None
    step, tensors, state = found
    load_weights(parameters, below("model", tensors))
    load_optimizer_state(optimizer, below("optimizer", tensors), state["optimizer"])
    put_random_states_back(tensors, state, group)
    return step, state["told"]


def trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters that are trained, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def like_trained(parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> Like:
    """A checkpoint's tensors of a model and its optimiser, cut as these are."""
    trained = [p for g in optimizer.param_groups for p in g["params"]]

    def like(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        part, _, rest = name.partition("/")
        if part == "model":
            return parameters.get(rest)
        if part == "optimizer" and shape:
            index = int(rest.partition("/")[0])
            return trained[index] if index < len(trained) else None
        return None

    return like


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


def _flush(file: Path) -> None:
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that cannot flush a folder
            raise
    finally:
        os.close(handle)
