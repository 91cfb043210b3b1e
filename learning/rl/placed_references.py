"""Reference policies in workers of the role `reference`.

The forward passes are those that the trainer would make, shared among the workers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from learning.batch.batch import Batch
from learning.batch.token_statistics import compute_token_statistics
from learning.models.forwards import apply_compute_options
from learning.models.policy import load_policy
from schemas.training import Training


@dataclass(frozen=True)
class Kept:
    """Where a reference policy lies, and how its blocks compute (None: plainly)."""

    folder: Path
    dtype: str
    training: Training | None


class ReferenceWorker:
    """What runs in a worker: every reference policy of the stage that stays as it is."""

    def __init__(self, kept: Mapping[str, Kept]) -> None:
        torch.use_deterministic_algorithms(True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.models = {}
        for name, one in kept.items():
            self.models[name] = load_policy(one.folder, device=device, dtype=one.dtype).model.requires_grad_(False)
            if one.training is not None:
                apply_compute_options(self.models[name], one.training)

    def logprobs(self, name: str, micro: Batch, temperature: float) -> dict[str, Tensor]:
        """`lp` (T,) of the sampled tokens of a micro-batch."""
        return compute_token_statistics(self.models[name], micro, ("lp",), temperature=temperature)
