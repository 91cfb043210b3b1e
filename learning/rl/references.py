"""Reference policies, whose log-probabilities the loss asks for: fixed ones, and ones that follow the policy.

Shapes: T sampled tokens.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learning.algorithm.composition import Algorithm
from learning.batch.batch import Batch
from learning.batch.micro_batches import compute_token_statistics, statistics_of
from learning.models.checkpoint import load_weights
from learning.models.forwards import apply_compute_options
from learning.models.policy import Policy, load_policy
from learning.models.sharded_model import Trained, share_passes
from learning.parallel.actors import Actors
from learning.parallel.group import ALONE, Each, Group, gather_shards
from learning.parallel.pool import Pool
from schemas.stages.rl import ReferenceSpec, Rl
from schemas.training import Training


class References:
    """Reference policies by name; a policy is loaded only if some part of the algorithm asks for it."""

    def __init__(
        self,
        stage: Rl,
        algorithm: Algorithm,
        policy: Policy,
        inputs: Mapping[str, Path],
        actors: Actors | None = None,
        group: Group = ALONE,
    ) -> None:
        """Load them; those that never change live in the workers of the role `reference` if there are any."""
        specs = {"ref": ReferenceSpec(model=stage.reference), **stage.references}
        self.specs = {name: spec for name, spec in specs.items() if algorithm.needs(f"lp_{name}_T")}
        self.models: dict[str, Any] = {}
        self.passes: dict[str, Each] = {}
        """How ranks share the forward passes of those models that are sharded."""
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
                continue  # this one is the policy without its adapters
            if policy.unread is not None and spec.sync_steps is None:
                self._load_sharded(name, stage, policy, inputs, group)
                continue
            self.models[name] = deepcopy(policy.model) if spec.model is None else _load(inputs[_port(name)], policy)
            self.models[name].requires_grad_(False)

    def _load_sharded(self, name: str, stage: Rl, policy: Policy, inputs: Mapping[str, Path], group: Group) -> None:
        """Load a reference that does not change; every rank reads its shards of it."""
        dtype = str(policy.model.dtype).removeprefix("torch.")
        own = self.specs[name].model is None
        loaded = load_policy(inputs["model" if own else _port(name)], device=group.device, dtype=dtype, group=group)
        if own:
            apply_compute_options(loaded.model, stage)
        self.models[name] = loaded.model.requires_grad_(False)
        self.passes[name] = share_passes(loaded, group)

    def add_to(self, batch: Batch, trained: Trained, *, max_tokens: int, temperature: float) -> Batch:
        """Add the token columns `lp_<name>`, at the sampling temperature."""

        def logprobs(model: Any, each: Each) -> Tensor:
            return statistics_of(batch, model, ("lp",), max_tokens=max_tokens, temperature=temperature, each=each)["lp"]

        columns = {}
        for name in self.specs:
            if name in self.placed:
                lp_T = logprobs(None, self._remote_pass(name, trained.group, temperature))
            elif name in self.models:
                lp_T = logprobs(self.models[name], self.passes.get(name, trained.group.each))
            else:
                adapted: Any = trained.model
                with adapted.disable_adapter():
                    lp_T = logprobs(adapted, trained.each)
            columns[f"lp_{name}"] = lp_T
        return batch.with_tokens(**columns)

    def _pool(self, actors: Actors, stage: Rl, policy: Policy, inputs: Mapping[str, Path]) -> Pool:
        dtype = str(policy.model.dtype).removeprefix("torch.")
        sources = {}
        for name in sorted(self.placed):
            own = self.specs[name].model is None
            folder = inputs["model"] if own else inputs[_port(name)]
            sources[name] = ReferenceSource(folder, dtype, stage if own else None)
        return Pool(actors, "reference", ReferenceWorker, sources)

    def _remote_pass(self, name: str, group: Group, temperature: float) -> Each:
        """Return what shares forward passes of a reference among the workers, with the results on every rank."""

        def each(micros: Sequence[Batch], _: Any) -> list[Any]:
            calls = [(name, micro, temperature) for micro in micros]
            return group.broadcast(self.pool.map("logprobs", calls) if self.pool is not None else None)

        return each

    @torch.no_grad()
    def refresh(self, policy: Policy, step: int) -> None:
        """Move the references that are due after iteration `step` (0-based) towards the trained policy."""
        for name, spec in self.specs.items():
            if spec.sync_steps is not None and (step + 1) % spec.sync_steps == 0:
                for old, new in zip(self.models[name].parameters(), policy.model.parameters(), strict=True):
                    old.lerp_(gather_shards(new).to(old.dtype), spec.mixup_alpha)

    def tensors(self) -> dict[str, Tensor]:
        """Return the weights of references that change, for a checkpoint."""
        return {
            f"{name}/{key}": parameter
            for name, spec in self.specs.items()
            if spec.sync_steps is not None
            for key, parameter in self.models[name].named_parameters()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned. Raise StepError for those of another model."""
        load_weights(self.tensors(), tensors)


@dataclass(frozen=True)
class ReferenceSource:
    """Where the weights of a reference policy are, and how its blocks compute (None: plainly)."""

    folder: Path
    dtype: str
    training: Training | None


class ReferenceWorker:
    """What runs in a reference worker: every reference policy of the stage that does not change."""

    def __init__(self, sources: Mapping[str, ReferenceSource]) -> None:
        torch.use_deterministic_algorithms(True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.models = {}
        for name, source in sources.items():
            self.models[name] = load_policy(source.folder, device=device, dtype=source.dtype).model.requires_grad_(
                False
            )
            if source.training is not None:
                apply_compute_options(self.models[name], source.training)

    def logprobs(self, name: str, micro: Batch, temperature: float) -> dict[str, Tensor]:
        """Return `lp` (T,) of the sampled tokens of a micro-batch."""
        return compute_token_statistics(self.models[name], micro, ("lp",), temperature=temperature)


def _port(name: str) -> str:
    return "reference" if name == "ref" else f"references.{name}.model"


def _load(folder: Path, like: Policy) -> Any:
    dtype = str(like.model.dtype).removeprefix("torch.")
    return load_policy(folder, device=str(like.model.device), dtype=dtype).model
