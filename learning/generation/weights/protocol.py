"""How new weights get from the trainer to engines: published once, loaded by each, proven tensor by tensor.

The trainer's end is a `WeightSync`, an engine's end a `Receiver`; a `Receipt`, plain values, goes between them by
whatever way calls go. What is sent is every tensor of the model by its name, a tied head too (an engine that keeps its
own copy of the head would keep the old one), adapters added to the weights they belong to.
`learning.generation.weights.local` and `learning.generation.weights.collective` are the ways tensors travel.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from learning.models.checksum import Checksum, compute_checksum
from schemas.errors import StepError

NAMED = 3
"""Tensors that an error names."""


@dataclass(frozen=True)
class Receipt:
    """What was published; it can be pickled and says nothing but where to look and what must be found there."""

    version: int
    kind: Literal["memory", "file", "collective"]
    where: str
    """Folder of the file, or the name of the collective."""
    checksums: Mapping[str, Checksum] = field(default_factory=dict)
    """Of every tensor, by its name in the model."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that share a tensor with another one, under whose name it travels: a tied head."""


class WeightSync(Protocol):
    """The trainer's end."""

    version: int
    """That of the last weights published; −1 before the first."""

    def publish(self, version: int) -> Receipt:
        """Offer the weights as they are now; the trainer may change them as soon as `wait` has returned."""
        ...

    def wait(self) -> None:
        """Return when nothing that was published is still on its way. Raises StepError when it cannot arrive."""
        ...

    def reset_cache(self) -> None:
        """Forget what was published: what has not been loaded by now cannot be loaded any more."""
        ...


class Receiver(Protocol):
    """An engine's end."""

    version: int
    """That of the weights loaded last; −1 before the first."""

    def load(self, receipt: Receipt) -> None:
        """Take the weights over and forget everything cached from older ones. Raises StepError unless all arrived."""
        ...


def require_newer(receipt: Receipt, version: int) -> None:
    """Raise StepError for weights older than those that are there."""
    if receipt.version < version:
        raise StepError(f"weight sync: version {receipt.version} came after version {version}: weights never go back")


def verify_tensors(tensors: Iterable[tuple[str, Tensor]], receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
    """The tensors, each checked as it passes, and at the end that all of them passed. Raises StepError."""
    seen: set[str] = set()
    for name, tensor in tensors:
        said = receipt.checksums.get(name)
        if said is None:
            raise StepError(f"weight sync: tensor {name} of version {receipt.version} is none that was published")
        if (found := compute_checksum(tensor)) != said:
            raise StepError(
                f"weight sync: tensor {name} of version {receipt.version} is not what was published: "
                f"{found} arrived, {said} was sent"
            )
        seen.add(name)
        yield name, tensor
    require_complete(seen, receipt.checksums, f"version {receipt.version}")


def require_complete(arrived: Iterable[str], expected: Iterable[str], what: str) -> None:
    """Raise StepError when names are missing: an engine would silently keep the old tensors."""
    if missing := sorted(set(expected) - set(arrived)):
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise StepError(
            f"weight sync: {what} lacks {', '.join(missing[:NAMED])}{more}: the engine would go on with old weights"
        )


def find_aliases(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Names whose tensor is also there under an earlier name, and that name."""
    first: dict[tuple[int, ...], str] = {}
    found: dict[str, str] = {}
    for name, tensor in weights.items():
        place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
        if tensor.numel() and (earlier := first.setdefault(place, name)) != name:
            found[name] = earlier
    return found


def add_aliases(tensors: Iterable[tuple[str, Tensor]], receipt: Receipt) -> Iterator[tuple[str, Tensor]]:
    """The tensors that travelled, each under all of its names."""
    others: dict[str, list[str]] = {}
    for name, earlier in receipt.aliases.items():
        others.setdefault(earlier, []).append(name)
    for name, tensor in tensors:
        for each in (name, *others.get(name, ())):
            yield each, tensor


def make_receipt(version: int, kind: Literal["memory", "file", "collective"], where: str, weights: Any) -> Receipt:
    """A receipt for weights by name."""
    aliases = find_aliases(weights)
    sums = {name: compute_checksum(tensor) for name, tensor in weights.items() if name not in aliases}
    return Receipt(version, kind, where, sums | {name: sums[earlier] for name, earlier in aliases.items()}, aliases)


def collect_weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by its name in the plain model; a tied head has an entry of its own (the same tensor).

    Of a model with adapters (peft) these are those of its base with the adapters' updates added, W + ΔW, which are new
    tensors; the model itself stays as it is.
    """
    if not hasattr(model, "get_base_model"):
        return {name: tensor.detach() for name, tensor in model.state_dict().items()}
    from learning.models.adapters import merge_weights  # peft takes long to import, and few need it

    return merge_weights(model)
