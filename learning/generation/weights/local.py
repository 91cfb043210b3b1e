"""Weight transport within a process or by files, and the receiver of an engine with its own policy."""

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
"""Files that are kept: the latest, and the one before, which a receiver may be reading."""
Fetch = Callable[[Receipt], Iterable[tuple[str, Tensor]]]
"""Returns the tensors of a receipt by name."""


class InProcess:
    """Trainer's end for engines of the same process: `fetch` returns the policy's own tensors without a copy."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.version = policy, -1
        self.weights: dict[str, Tensor] = {}

    def publish(self, version: int) -> Receipt:
        """Publish the tensors themselves; a change before they are loaded fails the checksums."""
        self.weights, self.version = collect_weights(self.policy.model), version
        return make_receipt(version, str(id(self)), self.weights)

    def fetch(self, receipt: Receipt) -> Iterable[tuple[str, Tensor]]:
        """Return the tensors of the latest receipt; raise StepError for another one."""
        if receipt.where != str(id(self)) or receipt.version != self.version or not self.weights:
            raise StepError(f"weight sync: version {receipt.version} is no longer available; load the latest")
        return self.weights.items()

    def wait(self) -> None:
        """Do nothing: tensors are not sent."""

    def reset_cache(self) -> None:
        """Discard the published weights."""
        self.weights = {}


class Files:
    """Trainer's end for engines that share a folder: a safetensors file per version, written atomically."""

    def __init__(self, policy: Policy, folder: Path) -> None:
        self.policy, self.folder, self.version = policy, folder, -1

    def publish(self, version: int) -> Receipt:
        """Write `weights-<version>.safetensors`, and remove all but the last two files."""
        if self.version < 0:
            # A killed attempt had progressed further: its files are newer than the first one of this attempt.
            self.reset_cache()
        weights = collect_weights(self.policy.model)
        file = self.folder / f"weights-{version:08d}.safetensors"
        receipt = make_receipt(version, str(file.absolute()), weights)
        own = {name: t.contiguous().cpu() for name, t in weights.items() if name not in receipt.aliases}
        with atomic_file(file, flush=False) as fresh:
            save_file(own, fresh, metadata={"format": "pt"})
        self.version = version
        for old in self._files()[:-KEPT]:
            old.unlink()
        return receipt

    def wait(self) -> None:
        """Do nothing: a published file is complete."""

    def reset_cache(self) -> None:
        """Remove the files."""
        for file in self._files():
            file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("weights-*.safetensors"))


def read_weights(receipt: Receipt) -> Iterable[tuple[str, Tensor]]:
    """Yield the tensors of a published file; raise StepError if it is missing or damaged."""
    try:
        with safe_open(receipt.where, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 — no mapping
                yield name, file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise StepError(f"weight sync: version {receipt.version} cannot be read: {error}") from error


class PolicyReceiver:
    """Receiver of an engine that samples with its own policy; `fetch` returns the tensors of a receipt.

    A failure can leave the policy with weights of two versions; `version` is then −1, and the next load replaces all.
    """

    def __init__(self, policy: Policy, engine: EngineProtocol, fetch: Fetch) -> None:
        self.policy, self.engine, self.fetch, self.version = policy, engine, fetch, -1

    @torch.no_grad()
    def load(self, receipt: Receipt) -> None:
        """Copy the weights into the policy, verify them, and notify the engine."""
        require_newer(receipt, self.version)
        self.version = -1
        own = self.policy.model.state_dict()
        if differ := sorted(own.keys() ^ receipt.checksums.keys()):
            raise StepError(f"weight sync: the two models differ, {len(differ)} tensor(s), first {differ[0]}")
        for name, tensor in verify_tensors(add_aliases(self.fetch(receipt), receipt), receipt):
            if own[name].shape != tensor.shape:
                raise StepError(f"weight sync: tensor {name} has another shape in the engine: {tuple(own[name].shape)}")
            own[name].copy_(tensor)
        self._verify(own, receipt)
        self.engine.sync(receipt.version)
        self.version = receipt.version

    def _verify(self, own: dict[str, Tensor], receipt: Receipt) -> None:
        """Verify the policy's tensors; those of another type were verified on arrival."""
        for name, expected in receipt.checksums.items():
            if f"torch.{expected.dtype}" == str(own[name].dtype) and compute_checksum(own[name]) != expected:
                raise StepError(f"weight sync: tensor {name} of version {receipt.version} was overwritten by another")
