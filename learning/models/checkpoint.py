"""Checkpoints of a step: safetensors and JSON in a folder that one rename completes; never a pickle."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypedDict

import torch
from safetensors.torch import load_file, save_file

from learning.parallel import checkpoint_shards, random_states
from learning.parallel.checkpoint_shards import Like, read_shards, request_whole, write_shards
from learning.parallel.group import ALONE, Group
from learning.parallel.random_states import collect_random_states, restore_random_states
from schemas.atomic_write import flush_path
from schemas.errors import StepError
from schemas.sealed import NotSealed, file_digest, read_sealed, write_sealed

WHOLE = "tensors.safetensors"
"""File of a checkpoint that one process wrote."""
STATE = "state.json"
SEAL = "seal.json"
"""Digests of all files of a checkpoint, written last; a folder without it is not read."""
_OWN_CODE = (__file__, str(checkpoint_shards.__file__), str(random_states.__file__))
VERSION = hashlib.sha256(b"".join(Path(file).read_bytes() for file in _OWN_CODE)).hexdigest()
"""Digest of the code that writes and reads checkpoints. It is part of every seal: a step's key does not cover this code
(docs/decisions/0030-boundaries-of-keys.md), and no other version of it reads what this one wrote."""
KEPT = 2
"""Number of checkpoints kept: the latest, and the one before in case the latest is damaged."""


class CheckpointContent(TypedDict):
    """The content of state.json."""

    step: int
    state: Any


class Saved(Protocol):
    """A part of a step that returns and restores its own state."""

    def to_json(self) -> Any:
        """Return its state as plain values."""
        ...

    def load(self, values: Any, /) -> None:
        """Restore what `to_json` returned."""
        ...


def save_checkpoint(
    folder: Path, step: int, tensors: Mapping[str, torch.Tensor], state: Any, group: Group = ALONE
) -> None:
    """Write `folder/step-<step>` atomically: it is either complete or absent.

    All ranks of a group call it: rank 0 writes replicated tensors; each rank writes its own shards.
    """
    fresh = folder / f".writing-{group.broadcast(os.getpid())}"
    if group.main:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
    group.barrier()
    written: dict[str, str] = {}
    if group.shards:
        written = write_shards(fresh, tensors, group)
    elif group.main:
        save_file({name: t.detach().contiguous().cpu().clone() for name, t in tensors.items()}, fresh / WHOLE)
        written = {WHOLE: file_digest(fresh / WHOLE)}
    if group.main:
        (fresh / STATE).write_text(json.dumps({"step": step, "state": state}))
        for file in fresh.iterdir():
            flush_path(file)
        final = folder / f"step-{step:08d}"
        seal_folder(fresh, final.name, {**written, STATE: file_digest(fresh / STATE)})
        flush_path(fresh)
        shutil.rmtree(final, ignore_errors=True)
        fresh.rename(final)
        flush_path(folder)
        for old in sorted(folder.glob("step-*"))[:-KEPT]:
            shutil.rmtree(old)
    group.barrier()


def load_latest(
    folder: Path,
    upto: int | None = None,
    *,
    like: Like = request_whole,
    group: Group = ALONE,
    refuse: Callable[[Any], str | None] = lambda state: None,
) -> tuple[int, dict[str, torch.Tensor], Any] | None:
    """Return step, tensors and state of the latest complete checkpoint (up to a step); damaged ones are skipped.

    It may have been written by any number of processes. `like` selects the tensors that are loaded as shards; `refuse`
    returns the problem, if any, with data that a state refers to.
    """
    latest = group.broadcast(_latest_whole(folder, upto, refuse) if group.main else None)
    if latest is None:
        return None
    chosen, content = latest
    whole = (chosen / WHOLE).is_file() and not group.shards
    tensors = load_file(chosen / WHOLE) if whole else read_shards(chosen, like)
    return content["step"], tensors, content["state"]


def _latest_whole(
    folder: Path, upto: int | None, refuse: Callable[[Any], str | None]
) -> tuple[Path, CheckpointContent] | None:
    """Return the folder and the content of the latest checkpoint whose files are unchanged.

    Unusable ones are renamed, so that they are never read and do not count among those that are kept.
    """
    refused = 0
    for candidate in sorted(folder.glob("step-*"), reverse=True):
        if upto is not None and candidate.name > f"step-{upto:08d}":
            continue
        problem = find_folder_problem(candidate)
        if problem is None:
            content: CheckpointContent = json.loads((candidate / STATE).read_text())
            problem = refuse(content["state"])
            if problem is None:
                return candidate, content
        refused += 1
        print(f"checkpoint {candidate.name}: {problem}; it is not used")
        aside = candidate.with_name(f"damaged-{candidate.name}")
        shutil.rmtree(aside, ignore_errors=True)
        candidate.rename(aside)
    if refused:
        print(f"none of {refused} checkpoint(s) can be used: the step starts from the beginning")
    return None


def save_training(
    folder: Path,
    step: int,
    parameters: Mapping[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
    progress: Any,
    group: Group = ALONE,
) -> None:
    """Write a checkpoint of a training loop: parameters, moments, random states, and the loop's progress."""
    moments, groups = get_optimizer_state(optimizer)
    rng_tensors, rng_rest = collect_random_states(group)
    tensors = add_prefix("model", parameters) | add_prefix("optimizer", moments) | rng_tensors
    save_checkpoint(folder, step, tensors, {"optimizer": groups, **rng_rest, "progress": progress}, group)


def load_training(
    folder: Path, parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer, group: Group = ALONE
) -> tuple[int, Any] | None:
    """Restore the latest checkpoint of `save_training` and return its step and progress; None if there is none.

    Raise StepError if it is of another model or optimiser.
    """
    checkpoint = load_latest(folder, like=shard_like_trained(parameters, optimizer), group=group)
    if checkpoint is None:
        return None
    step, tensors, state = checkpoint
    load_weights(parameters, strip_prefix("model", tensors))
    load_optimizer_state(optimizer, strip_prefix("optimizer", tensors), state["optimizer"])
    restore_random_states(tensors, state, group)
    return step, state["progress"]


def get_trained_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters that are trained, by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def shard_like_trained(parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> Like:
    """Return a function from a checkpoint's tensor to the parameter that it is sharded like; None: whole."""
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


def add_prefix(group: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors under `<group>/<name>`."""
    return {f"{group}/{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(group: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors under `<group>/`, by their own names."""
    return {name.removeprefix(f"{group}/"): t for name, t in tensors.items() if name.startswith(f"{group}/")}


def load_weights(parameters: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy a checkpoint's tensors into parameters of the same names; raise StepError if names or shapes differ."""
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


def get_optimizer_state(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[Any]]:
    """Return tensors by `<parameter>/<name>`, and the groups without their parameters."""
    whole = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    for index, state in whole["state"].items():
        for name, value in state.items():
            # bitsandbytes nests its 8-bit state one level deeper, and reads it flat as well.
            fields = value if isinstance(value, dict) else {name: value}
            tensors |= {f"{index}/{field}": torch.as_tensor(content) for field, content in fields.items()}
    return tensors, whole["param_groups"]


def load_optimizer_state(optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], groups: list[Any]) -> None:
    """Restore what `get_optimizer_state` returned; raise StepError if the parameters differ."""
    parameters = {str(i): p for i, p in enumerate(p for g in optimizer.param_groups for p in g["params"])}
    state: dict[int, dict[str, torch.Tensor | int]] = {}
    for name, tensor in tensors.items():
        index, _, field = name.partition("/")
        if index not in parameters or not _is_state_of(tuple(parameters[index].shape), field, tuple(tensor.shape)):
            wanted = tuple(parameters[index].shape) if index in parameters else "no such parameter"
            raise StepError(f"checkpoint: optimiser state {name} has shape {tuple(tensor.shape)}, here it is {wanted}")
        is_count = not tensor.ndim and not tensor.is_floating_point()
        state.setdefault(int(index), {})[field] = int(tensor) if is_count else tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _is_state_of(shape: tuple[int, ...], field: str, own_shape: tuple[int, ...]) -> bool:
    """Return whether a state has the shape of its parameter, of Adafactor's factors of it, or of 8-bit blocks."""
    factors = {"row_var": (*shape[:-1], 1), "col_var": (*shape[:-2], 1, *shape[-1:])}
    is_of_blocks = field.startswith(("qmap", "absmax"))
    return not own_shape or is_of_blocks or own_shape == factors.get(field, shape)


def seal_folder(folder: Path, name: str, digests: Mapping[str, str]) -> None:
    """Write the seal of a folder that will be renamed to `name`; `digests` are those of its files."""
    write_sealed(folder / SEAL, _label(folder.parent, name), dict(digests))


def find_folder_problem(folder: Path) -> str | None:
    """Return what is wrong with a sealed folder; None if its files are exactly those that were written."""
    try:
        sealed = read_sealed(folder / SEAL, _label(folder.parent, folder.name))
    except OSError:
        return "it has no seal"
    except NotSealed:
        return "its seal is not the one that was written here"
    here = {path.name: path for path in folder.iterdir() if path.name != SEAL}
    if strange := sorted(here.keys() ^ sealed.keys()):
        return f"{strange[0]} is {'missing' if strange[0] in sealed else 'no part of it'}"
    for name, path in sorted(here.items()):
        if path.is_symlink() or not path.is_file() or file_digest(path) != sealed[name]:
            return f"{name} is not as it was written"
    return None


def _label(above: Path, name: str) -> str:
    return f"checkpoint {VERSION} {above.name}/{name}"
