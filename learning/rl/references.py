"""Policies whose log-probabilities the loss compares with: fixed ones, and ones that follow the trained policy.

Shapes: T sampled tokens.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.split import split_micro_batches
from learning.batch.token_statistics import compute_token_statistics
from learning.models.checkpoint import load_weights
from learning.models.policy import Policy, load_policy
from learning.models.sharded_model import Trained
from learning.parallel.actors import Actors
from learning.parallel.group import ALONE, Each, Group, gather_shards
from learning.parallel.pool import Pool
from schemas.stages.rl import ReferenceSpec, Rl


class References:
    """Reference policies by name; only those are loaded that some part of the algorithm asks for."""

    def __init__(
        self,
        stage: Rl,
        algorithm: Algorithm,
        policy: Policy,
        inputs: Mapping[str, Path],
        actors: Actors | None = None,
        group: Group = ALONE,
    ) -> None:
        """Those that stay as they are live in workers where the role `reference` has any; rank 0 asks them."""
        specs = {"ref": ReferenceSpec(model=stage.reference), **stage.references}
        self.specs = {name: spec for name, spec in specs.items() if algorithm.needs(f"lp_{name}_T")}
        self.models: dict[str, Any] = {}
        self.placed: set[str] = set()
        self.pool: Pool | None = None
        if actors is not None and actors.size("reference"):
            self.placed = {name for name, spec in self.specs.items() if spec.sync_steps is None}
            if group.main and self.placed:
                self.pool = self._pool(actors, stage, policy, inputs)
        for name, spec in self.specs.items():
            if name in self.placed:
                continue
            if spec.model is None and spec.sync_steps is None and hasattr(policy.model, "disable_adapter"):
                continue  # the policy itself without its adapters
            self.models[name] = deepcopy(policy.model) if spec.model is None else _load(inputs[_port(name)], policy)
            self.models[name].requires_grad_(False)

    def add_to(self, batch: Batch, trained: Trained, *, max_tokens: int, temperature: float) -> Batch:
        """Add the token columns `lp_<name>`, at the sampling temperature."""
        how = {"max_tokens": max_tokens, "temperature": temperature}
        for name in self.specs:
            if name in self.placed:
                found = statistics_of(batch, None, ("lp",), **how, each=self._asked(name, trained.group, temperature))
            elif name in self.models:
                found = statistics_of(batch, self.models[name], ("lp",), **how, each=trained.group.each)
            else:
                with trained.model.disable_adapter():
                    found = statistics_of(batch, trained.model, ("lp",), **how, each=trained.each)
            batch = batch.with_tokens(**{f"lp_{name}": found["lp"]})
        return batch

    def _pool(self, actors: Actors, stage: Rl, policy: Policy, inputs: Mapping[str, Path]) -> Pool:
        from learning.rl.placed_references import Kept, ReferenceWorker

        dtype = str(policy.model.dtype).removeprefix("torch.")
        kept = {}
        for name in sorted(self.placed):
            own = self.specs[name].model is None
            folder = inputs["model"] if own else inputs[_port(name)]
            kept[name] = Kept(folder, dtype, stage if own else None)
        return Pool(actors, "reference", ReferenceWorker, kept)

    def _asked(self, name: str, group: Group, temperature: float) -> Each:
        """Forward passes of a reference in the workers, told to every rank."""

        def each(micros: Sequence[Batch], _: Any) -> list[Any]:
            asked = [(name, micro, temperature) for micro in micros]
            return group.broadcast(self.pool.map("logprobs", asked) if self.pool is not None else None)

        return each

    @torch.no_grad()
    def refresh(self, policy: Policy, step: int) -> None:
        """Bring those that are due after iteration `step` (0-based) nearer to the trained policy."""
        for name, spec in self.specs.items():
            if spec.sync_steps is not None and (step + 1) % spec.sync_steps == 0:
                theirs = self.models[name].parameters()
                for old, new in zip(theirs, policy.model.parameters(), strict=True):
                    old.lerp_(gather_shards(new).to(old.dtype), spec.mixup_alpha)

    def tensors(self) -> dict[str, Tensor]:
        """Weights of those that change, for a checkpoint."""
        return {
            f"{name}/{key}": parameter
            for name, spec in self.specs.items()
            if spec.sync_steps is not None
            for key, parameter in self.models[name].named_parameters()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave; raises StepError for those of another model."""
        load_weights(self.tensors(), tensors)


def _port(name: str) -> str:
    return "reference" if name == "ref" else f"references.{name}.model"


def _load(folder: Path, like: Policy) -> Any:
    dtype = str(like.model.dtype).removeprefix("torch.")
    return load_policy(folder, device=str(like.model.device), dtype=dtype).model


@torch.no_grad()
def statistics_of(
    batch: Batch,
    model: Any,
    names: tuple[str, ...],
    *,
    max_tokens: int,
    temperature: float,
    replay: bool = False,
    each: Each = ALONE.each,
) -> dict[str, Tensor]:
    """Statistics (T,) in float64 of a batch's sampled tokens under a model, without a gradient.

    With `replay` a mixture of experts uses the experts that the batch has on record, if it has. `each` is how the ranks
    of a group share the forward passes.
    """

    def forward(micro: Batch) -> dict[str, Tensor]:
        return compute_token_statistics(model, micro, names, temperature=temperature, replay=replay)

    found = {name: torch.zeros(len(batch.tokens["learn"]), dtype=torch.float64) for name in names}
    micros = split_micro_batches(batch.with_tokens(place_in_whole=batch.sampled_T), max_tokens)
    for micro, columns in zip(micros, each(micros, forward), strict=True):
        for name, column_T in columns.items():
            found[name][micro.sampled("place_in_whole")] = column_T
    return {name: column_M[batch.sampled_T] for name, column_M in found.items()}
