"""Protocol of weight synchronisation: published once, loaded by each engine, verified tensor by tensor.

The trainer's end is a `WeightSync`, and an engine's end loads its `Receipt` of plain values. Every tensor of the model
is sent by its name, also a tied head (an engine with its own copy of the head would keep the old one), with adapters
merged into their base weights. The transports are in `learning.generation.weights.local`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from learning.models.checksum import Checksum, compute_checksum
from schemas.errors import StepError

NAMED = 3
"""The most tensors that an error names."""


@dataclass(frozen=True)
class Receipt:
    """Description of published weights: where they are and the checksums to expect. It can be pickled."""

    version: int
    where: str
    """Path of the file; the id of the sender within a process."""
    checksums: Mapping[str, Checksum] = field(default_factory=dict)
    """Checksum of every tensor, by its name in the model."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that share a tensor with another name, under which it is sent: a tied head."""


class WeightSync(Protocol):
    """The trainer's end."""

    version: int
    """Version of the last published weights; −1 before the first."""

    def publish(self, version: int) -> Receipt:
        """Publish the current weights; the trainer may change them when `wait` has returned."""
        ...

    def wait(self) -> None:
        """Return when all published weights have been sent; raise StepError if they cannot be."""
        ...

    def reset_cache(self) -> None:
        """Discard published weights; they can no longer be loaded."""
        ...


def require_newer(receipt: Receipt, version: int) -> None:
    """Raise StepError if weights are older than the loaded ones."""
    if receipt.version < version:
        raise StepError(f"weight sync: version {receipt.version} came after version {version}; versions must rise")


def verify_tensors(tensors: Iterable[tuple[str, Tensor]], receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors, verifying each checksum and finally that all arrived; raise StepError otherwise."""
    seen: set[str] = set()
    for name, tensor in tensors:
        expected = receipt.checksums.get(name)
        if expected is None:
            raise StepError(f"weight sync: tensor {name} of version {receipt.version} was not published")
        if (received := compute_checksum(tensor)) != expected:
            raise StepError(
                f"weight sync: tensor {name} of version {receipt.version} is not what was published: "
                f"{received} arrived, {expected} was sent"
            )
        seen.add(name)
        yield name, tensor
    require_complete(seen, receipt.checksums, f"version {receipt.version}")


def require_complete(arrived: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise StepError if names are missing, because an engine would silently keep the old tensors."""
    if missing := sorted(set(expected) - set(arrived)):
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise StepError(
            f"weight sync: {what} lacks {', '.join(missing[:NAMED])}{more}; the engine would keep their old values"
        )


def find_aliases(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Return names whose tensor also has an earlier name, mapped to that name."""
    first: dict[tuple[int, ...], str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
        if tensor.numel() and (earlier := first.setdefault(place, name)) != name:
            aliases[name] = earlier
    return aliases


def add_aliases(tensors: Iterable[tuple[str, Tensor]], receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
    """Yield the received tensors under all of their names."""
    others: dict[str, list[str]] = {}
    for name, earlier in receipt.aliases.items():
        others.setdefault(earlier, []).append(name)
    for name, tensor in tensors:
        for each in (name, *others.get(name, ())):
            yield each, tensor


def make_receipt(version: int, where: str, weights: Any) -> Receipt:
    """Return a receipt for weights by name."""
    aliases = find_aliases(weights)
    sums = {name: compute_checksum(tensor) for name, tensor in weights.items() if name not in aliases}
    return Receipt(version, where, sums | {name: sums[earlier] for name, earlier in aliases.items()}, aliases)


def collect_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return every parameter and buffer by its name in the plain model; a tied head has its own entry.

    For a model with adapters (peft) these are new tensors W + ΔW, the base weights with the adapters merged; the model
    itself does not change.
    """
    base: Any = model
    if not hasattr(base, "get_base_model"):
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}
    from learning.models.adapters import merge_weights  # imported here because peft is slow to import and rarely used

    return merge_weights(base)
