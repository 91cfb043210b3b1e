"""Weights that travel within a process, or through a file; and the receiver of an engine with a policy of its own."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from learning.generation.weights.protocol import (
    Receipt,
    add_aliases,
    collect_weights,
    make_receipt,
    require_newer,
    verify_tensors,
)
from learning.models.checksum import compute_checksum
from learning.models.policy import Policy
from learning.samples.engine_protocol import EngineProtocol
from schemas.atomic_write import atomic_file
from schemas.errors import StepError

KEPT = 2
"""Files that stay: the latest, and the one before, which a receiver may be reading."""
Fetch = Callable[[Receipt], Iterable[tuple[str, Tensor]]]
"""The tensors of a receipt, by name, from wherever they lie."""


class InProcess:
    """Trainer's end for engines of the same process: `fetch` hands out the policy's own tensors, nothing is copied."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.version = policy, -1
        self.weights: dict[str, Tensor] = {}

    def publish(self, version: int) -> Receipt:
        """Offer the tensors themselves; what the trainer changes before they are loaded fails the checksums."""
        self.weights, self.version = collect_weights(self.policy.model), version
        return make_receipt(version, "memory", str(id(self)), self.weights)

    def fetch(self, receipt: Receipt) -> Iterable[tuple[str, Tensor]]:
        """The tensors of the latest receipt. Raises StepError for another one."""
        if receipt.where != str(id(self)) or receipt.version != self.version or not self.weights:
            raise StepError(f"weight sync: version {receipt.version} is not offered here any more")
        return self.weights.items()

    def wait(self) -> None:
        """Nothing is on its way."""

    def reset_cache(self) -> None:
        """Offer nothing."""
        self.weights = {}


class Files:
    """Trainer's end for engines that see the same folder: a safetensors file per version, whole or not there."""

    def __init__(self, policy: Policy, folder: Path) -> None:
        self.policy, self.folder, self.version = policy, folder, -1

    def publish(self, version: int) -> Receipt:
        """Write `weights-<version>.safetensors`; the ones before the last are removed."""
        if self.version < 0:
            # A try that was killed had come further: its files are newer than the first one of this try.
            self.reset_cache()
        weights = collect_weights(self.policy.model)
        file = self.folder / f"weights-{version:08d}.safetensors"
        receipt = make_receipt(version, "file", str(file.absolute()), weights)
        own = {name: t.contiguous().cpu() for name, t in weights.items() if name not in receipt.aliases}
        with atomic_file(file, flush=False) as fresh:
            save_file(own, fresh, metadata={"format": "pt"})
        self.version = version
        for old in self._files()[:-KEPT]:
            old.unlink()
        return receipt

    def wait(self) -> None:
        """A file is there as soon as it is published."""

    def reset_cache(self) -> None:
        """Remove the files."""
        for file in self._files():
            file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("weights-*.safetensors"))


def read_weights(receipt: Receipt) -> Iterable[tuple[str, Tensor]]:
    """The tensors of a file that was published. Raises StepError when it is gone or damaged."""
    try:
        with safe_open(receipt.where, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 — no mapping
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise StepError(f"weight sync: version {receipt.version} cannot be read: {error}") from error


class PolicyReceiver:
    """An engine's end where the engine samples with a policy of its own: `fetch` brings the tensors of a receipt.

    What fails half-way leaves the policy mixed; `version` is then −1, and the next version replaces all of it.
    """

    def __init__(self, policy: Policy, engine: EngineProtocol, fetch: Fetch) -> None:
        self.policy, self.engine, self.fetch, self.version = policy, engine, fetch, -1

    @torch.no_grad()
    def load(self, receipt: Receipt) -> None:
        """Take the weights over, look whether they are there, and tell the engine."""
        require_newer(receipt, self.version)
        self.version = -1
        own = self.policy.model.state_dict()
        if differ := sorted(own.keys() ^ receipt.checksums.keys()):
            raise StepError(f"weight sync: the two models differ, {len(differ)} tensor(s), first {differ[0]}")
        for name, tensor in verify_tensors(add_aliases(self.fetch(receipt), receipt), receipt):
            if own[name].shape != tensor.shape:
                raise StepError(f"weight sync: tensor {name} has another shape here: {tuple(own[name].shape)}")
            own[name].copy_(tensor)
        self._look(own, receipt)
        self.engine.sync(receipt.version)
        self.version = receipt.version

    def _look(self, own: dict[str, Tensor], receipt: Receipt) -> None:
        """Compare what lies in the policy now; a tensor of another type cannot be, it was on arrival."""
        for name, said in receipt.checksums.items():
            if f"torch.{said.dtype}" == str(own[name].dtype) and compute_checksum(own[name]) != said:
                raise StepError(f"weight sync: tensor {name} of version {receipt.version} was overwritten by another")
